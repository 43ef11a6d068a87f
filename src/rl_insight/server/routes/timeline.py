"""The timeline: lanes, what is on them, and single spans."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import (
    DurationParameter,
    LimitParameter,
    RunParameter,
    StepParameter,
    TextParameter,
    TimeParameter,
    answers,
    json_answer,
    reading,
)
from rl_insight.store import queries
from rl_insight.store.queries.span_series import MAX_INTERVALS, MAX_POINTS, SeriesAxis
from rl_insight.store.queries.timeline import MAX_BLOCKS, MAX_PIXELS

router = APIRouter(prefix="/api/v1", tags=["timeline"])

LaneIds = Annotated[list[Annotated[int, Query(ge=0, lt=2**31)]] | None, Query(alias="lane", description="Lane ids.")]
SpanId = Annotated[str, Query(pattern="^[0-9a-fA-F]{1,16}$", description="16 hexadecimal digits.")]


@router.get("/lanes", responses=answers(list[queries.Lane]))
def lanes(request: Request, run: RunParameter = None) -> Response:
    """List the lanes, by role, rank, process and name."""
    with reading(request, run) as cursor:
        return json_answer(queries.lanes(cursor))


@router.get("/timeline", responses=answers(queries.Timeline))
def timeline(
    request: Request,
    start_ns: Annotated[int, Query(ge=0, lt=2**62)],
    end_ns: Annotated[int, Query(ge=0, lt=2**62)],
    pixels: Annotated[int, Query(ge=1, le=MAX_PIXELS)] = 1000,
    lane: LaneIds = None,
    max_blocks: Annotated[int, Query(ge=100, le=MAX_BLOCKS)] = MAX_BLOCKS,
    origin_ns: Annotated[int, Query(ge=0, lt=2**62, description="Times in the answer count from here.")] = 0,
    steps: Annotated[bool, Query(description="Say each block's training step, too.")] = False,
    run: RunParameter = None,
) -> Response:
    """Show what happened in a window, with spans shorter than a pixel merged.

    JavaScript has no room for nanoseconds since 1970: with an `origin_ns` near the window, its numbers are exact.
    """
    with reading(request, run) as cursor:
        found = queries.timeline(
            cursor,
            start_ns=start_ns,
            end_ns=end_ns,
            pixels=pixels,
            now_ns=time.time_ns(),
            lane_ids=lane,
            max_blocks=max_blocks,
            with_steps=steps,
        )
        return json_answer(_counted_from(found, origin_ns))


def _counted_from(found: queries.Timeline, origin_ns: int) -> queries.Timeline:
    if origin_ns == 0:
        return found
    return msgspec.structs.replace(
        found,
        start_ns=found.start_ns - origin_ns,
        end_ns=found.end_ns - origin_ns,
        block_start_ns=[moment - origin_ns for moment in found.block_start_ns],
        block_end_ns=[moment - origin_ns for moment in found.block_end_ns],
    )


@router.get("/span", responses=answers(queries.SpanDetail))
def span(request: Request, span_id: SpanId, process_id: TextParameter = None, run: RunParameter = None) -> Response:
    """Show one span with its parents, children, events and logs."""
    with reading(request, run) as cursor:
        found = queries.span_detail(cursor, span_id, process_id)
    if found is None:
        raise HTTPException(404, f"there is no span {span_id} in this run.")
    return json_answer(found)


@router.get("/spans", responses=answers(list[queries.Span]))
def spans(  # one argument for each condition
    request: Request,
    name: TextParameter = None,
    name_contains: TextParameter = None,
    text: TextParameter = None,
    error: TextParameter = None,
    attribute: Annotated[str | None, Query(max_length=1000, pattern="=", description="`key=value`.")] = None,
    lane: LaneIds = None,
    role: TextParameter = None,
    status: Literal["ok", "error", "cancelled", "open"] | None = None,
    step: StepParameter = None,
    session_id: TextParameter = None,
    trace_id: Annotated[str | None, Query(pattern="^[0-9a-fA-F]{32}$")] = None,
    longer_than_ns: DurationParameter = None,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    order: Literal["newest", "oldest", "longest"] = "newest",
    limit: LimitParameter = 100,
    run: RunParameter = None,
) -> Response:
    """Search spans; conditions add up. `text` is a part of the name, the attributes, the error or the session id."""
    key, _, value = (attribute or "").partition("=")
    with reading(request, run) as cursor:
        found = queries.search_spans(
            cursor,
            name=name,
            name_contains=name_contains,
            text=text,
            error=error,
            attribute=None if attribute is None else (key.strip(), value.strip()),
            lane_ids=lane,
            role=role,
            status=status,
            step=step,
            session_id=session_id,
            trace_id=trace_id,
            longer_than_ns=longer_than_ns,
            start_ns=start_ns,
            end_ns=end_ns,
            order=order,
            limit=limit,
        )
        return json_answer(found)


@router.get("/spans/series", responses=answers(queries.SpanSeries))
def span_series(  # one argument for each condition
    request: Request,
    name: Annotated[str, Query(max_length=1000)],
    axis: SeriesAxis = "step",
    intervals: Annotated[int, Query(ge=1, le=MAX_INTERVALS)] = 200,
    points: Annotated[int, Query(ge=0, le=MAX_POINTS, description="About so many single spans.")] = 2000,
    lane: LaneIds = None,
    first_step: StepParameter = None,
    last_step: StepParameter = None,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    run: RunParameter = None,
) -> Response:
    """Show count, errors, p50 and p95 of the finished spans of a name by step or time, and an even sample of them."""
    with reading(request, run) as cursor:
        found = queries.span_series(
            cursor,
            name,
            axis=axis,
            intervals=intervals,
            points=points,
            lane_ids=lane,
            first_step=first_step,
            last_step=last_step,
            start_ns=start_ns,
            end_ns=end_ns,
        )
        return json_answer(found)


@router.get("/open/work", responses=answers(list[queries.OpenWork]))
def open_work(request: Request, run: RunParameter = None) -> Response:
    """Show the work in flight by name, the oldest first, with how long such work usually takes."""
    with reading(request, run) as cursor:
        return json_answer(queries.open_work(cursor, time.time_ns()))


@router.get("/open/spans", responses=answers(list[queries.Span]))
def open_spans(request: Request, limit: LimitParameter = 1000, run: RunParameter = None) -> Response:
    """Show the open spans, the oldest first."""
    with reading(request, run) as cursor:
        return json_answer(queries.open_spans(cursor, limit))
