"""Where the time goes: hotspots and steps; sessions."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response

from rl_insight.diagnosis.changes import MAX_WINDOW, Changes, what_changed
from rl_insight.diagnosis.critical_path import MAX_STEPS, CriticalPath, critical_path
from rl_insight.server.http.answers import (
    LimitParameter,
    RankParameter,
    RunParameter,
    StepParameter,
    TextParameter,
    TimeParameter,
    answers,
    json_answer,
    reading,
)
from rl_insight.server.routes.timeline import LaneIds
from rl_insight.sessions.records import record_line
from rl_insight.store import queries
from rl_insight.store.queries.hotspots import GroupBy
from rl_insight.store.queries.session_groups import GroupOrder
from rl_insight.store.queries.sessions import SessionDetail
from rl_insight.store.queries.transcripts import MAX_CHARACTERS

router = APIRouter(prefix="/api/v1", tags=["analysis"])

FirstStep = Annotated[int, Query(gt=-(2**62), lt=2**62)]


class SessionPage(msgspec.Struct, frozen=True):
    """A page of sessions, and how many there are in all."""

    total: int
    sessions: list[queries.Session]


@router.get("/hotspots", responses=answers(list[queries.Hotspot]))
def hotspots(
    request: Request,
    step: StepParameter = None,
    last_steps: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    lane: LaneIds = None,
    segment: TextParameter = None,
    group_by: GroupBy = "name",
    limit: LimitParameter = 500,
    run: RunParameter = None,
) -> Response:
    """Show where the time goes: by name, role or lane, with wall time as the union of intervals.

    With `start_ns` or `end_ns`, every span that overlaps the window counts with its part inside it, also one that began
    earlier or ends later; open spans count up to the window's end, or up to now.
    """
    scope = queries.Scope(
        step=step, last_steps=last_steps, start_ns=start_ns, end_ns=end_ns, lane_ids=lane, segment=segment
    )
    with reading(request, run) as cursor:
        return json_answer(queries.hotspots(cursor, scope, group_by, limit))


@router.get("/hotspots/flame", responses=answers(queries.Flame))
def flame(
    request: Request,
    step: StepParameter = None,
    last_steps: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
    start_ns: TimeParameter = None,
    end_ns: TimeParameter = None,
    lane: LaneIds = None,
    segment: TextParameter = None,
    run: RunParameter = None,
) -> Response:
    """Show where the time goes inside of what: spans by role, name and the names of children, in the scope of hotspots.

    Of more than half a million spans, the longest are taken.
    """
    scope = queries.Scope(
        step=step, last_steps=last_steps, start_ns=start_ns, end_ns=end_ns, lane_ids=lane, segment=segment
    )
    with reading(request, run) as cursor:
        return json_answer(queries.flame(cursor, scope))


@router.get("/steps", responses=answers(list[queries.Step]))
def steps(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
    last: Annotated[int | None, Query(gt=-(2**62), lt=2**62, description="Only steps up to this number.")] = None,
    run: RunParameter = None,
) -> Response:
    """List the training steps that began last, with their times.

    A step lasts from its beginning to the beginning of the next one, by the role that leads the steps; the last step of
    a run that has ended lasts until that role's last record.
    """
    with reading(request, run) as cursor:
        return json_answer(queries.steps(cursor, limit, last=last))


@router.get("/steps/breakdown", responses=answers(queries.Breakdown))
def step_breakdown(
    request: Request, first: FirstStep, last: FirstStep, role: TextParameter = None, run: RunParameter = None
) -> Response:
    """Show where the time of each finished step went on an average lane of a role, by default of the leading one.

    The outermost states and the idle time add up to the step; what ran inside a state is shown with it.
    """
    with reading(request, run) as cursor:
        return json_answer(queries.breakdown(cursor, first, last, role))


@router.get("/steps/critical_path", responses=answers(CriticalPath))
def step_critical_path(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_STEPS)] = 10,
    last: Annotated[int | None, Query(gt=-(2**62), lt=2**62, description="Only steps up to this number.")] = None,
    run: RunParameter = None,
) -> Response:
    """Show who each of the last finished steps waited for, and how long it would take if that process were faster.

    A suspect that explains at least half of the excess is the culprit; otherwise there is none, and the suspects are
    the three whose speed would save most.
    """
    with reading(request, run) as cursor:
        return json_answer(critical_path(cursor, limit, last=last))


@router.get("/steps/idle", responses=answers(list[queries.RoleIdle]))
def step_idle(request: Request, first: FirstStep, last: FirstStep, run: RunParameter = None) -> Response:
    """Show how much of the time of finished steps the lanes of each role had nothing to do."""
    with reading(request, run) as cursor:
        return json_answer(queries.idle_by_role(cursor, first, last))


@router.get("/steps/compare", responses=answers(queries.StepComparison))
def step_comparison(
    request: Request, step: FirstStep, role: TextParameter = None, run: RunParameter = None
) -> Response:
    """Show a finished step beside a usual one: the median of its neighbors, phase by phase, what grew most first."""
    with reading(request, run) as cursor:
        return json_answer(queries.compare_step(cursor, step, role))


@router.get("/steps/changes", responses=answers(Changes))
def step_changes(
    request: Request,
    step: FirstStep,
    window: Annotated[int, Query(ge=1, le=MAX_WINDOW, description="Steps to look at on each side.")] = 40,
    run: RunParameter = None,
) -> Response:
    """Show what changed at a step, the largest change first: metrics, phases, errors, warnings in the log, events.

    A series counts if its level changes there, or if its value there stands out from those around it; levels are
    medians, and the size of a change is measured by the noise of the series.
    """
    with reading(request, run) as cursor:
        return json_answer(what_changed(cursor, step, window))


@router.get("/steps/ranks", responses=answers(queries.RankGrid))
def step_ranks(
    request: Request,
    first: FirstStep,
    last: FirstStep,
    name: TextParameter = None,
    metric: TextParameter = None,
    role: TextParameter = None,
    run: RunParameter = None,
) -> Response:
    """Show a phase (`name`, by default the one with the most time) or a `metric` by process and finished step."""
    with reading(request, run) as cursor:
        return json_answer(queries.rank_steps(cursor, first, last, name=name, metric=metric, role=role))


@router.get("/steps/metrics", responses=answers(list[queries.StepMetric]))
def step_metrics(request: Request, first: FirstStep, last: FirstStep, run: RunParameter = None) -> Response:
    """Show every gauge by step."""
    with reading(request, run) as cursor:
        return json_answer(queries.step_metrics(cursor, first, last))


@router.get("/sessions", responses=answers(SessionPage))
def sessions(  # one argument for each condition
    request: Request,
    session_id: TextParameter = None,
    task_id: TextParameter = None,
    status: Annotated[list[str] | None, Query(max_length=20)] = None,
    role: TextParameter = None,
    rank: RankParameter = None,
    first_step: StepParameter = None,
    last_step: StepParameter = None,
    longer_than_s: Annotated[float | None, Query(ge=0, le=1e12)] = None,
    least_reward: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    most_reward: Annotated[float | None, Query(allow_inf_nan=False)] = None,
    least_tokens: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
    most_tokens: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
    least_turns: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
    most_turns: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
    group_id: TextParameter = None,
    model_version: TextParameter = None,
    reason: TextParameter = None,
    phase: TextParameter = None,
    text: TextParameter = None,
    order: Annotated[str, Query(max_length=100)] = "submit_ts",
    descending: bool = True,
    limit: LimitParameter = 100,
    offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    detail: SessionDetail = "full",
    run: RunParameter = None,
) -> Response:
    """List the sessions that fit every condition given.

    `order=sample` makes the first ones an even sample of all that fit. `detail=phases` leaves out payloads, counters
    and rollout statistics, `detail=brief` the phases too, but for their seconds.
    """
    with reading(request, run) as cursor:
        found, total = queries.sessions(
            cursor,
            session_id=session_id,
            task_id=task_id,
            status=status,
            role=role,
            rank=rank,
            first_step=first_step,
            last_step=last_step,
            longer_than_s=longer_than_s,
            least_reward=least_reward,
            most_reward=most_reward,
            least_tokens=least_tokens,
            most_tokens=most_tokens,
            least_turns=least_turns,
            most_turns=most_turns,
            group_id=group_id,
            model_version=model_version,
            reason=reason,
            phase=phase,
            text=text,
            order=order,
            descending=descending,
            limit=limit,
            offset=offset,
            detail=detail,
        )
        return json_answer(SessionPage(total, found))


@router.get("/sessions/in_flight", responses=answers(list[queries.SessionInFlight]))
def sessions_in_flight(request: Request, limit: LimitParameter = 1000, run: RunParameter = None) -> Response:
    """List the sessions that have not ended, the oldest first, with the phase each of them is in."""
    with reading(request, run) as cursor:
        return json_answer(queries.sessions_in_flight(cursor, time.time_ns(), limit))


@router.get("/sessions/groups", responses=answers(queries.GroupPage))
def session_groups(
    request: Request,
    group_id: TextParameter = None,
    task_id: TextParameter = None,
    first_step: StepParameter = None,
    last_step: StepParameter = None,
    dead: bool | None = None,
    least_samples: Annotated[int, Query(ge=1, lt=2**31)] = 2,
    order: GroupOrder = "step",
    descending: bool = True,
    limit: LimitParameter = 200,
    offset: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    run: RunParameter = None,
) -> Response:
    """List groups of samples, as GRPO compares them: those of one `group_id` (by default a task) in one step.

    A group whose rewards are all equal is dead: it teaches nothing. `dead` asks for those alone, or for the others.
    """
    with reading(request, run) as cursor:
        found = queries.session_groups(
            cursor,
            group_id=group_id,
            task_id=task_id,
            first_step=first_step,
            last_step=last_step,
            dead=dead,
            least_samples=least_samples,
            order=order,
            descending=descending,
            limit=limit,
            offset=offset,
        )
        return json_answer(found)


@router.get("/sessions/groups/steps", responses=answers(list[queries.GroupStep]))
def session_group_steps(
    request: Request, group_id: TextParameter = None, task_id: TextParameter = None, run: RunParameter = None
) -> Response:
    """Show the groups of each step: how many, how many of them dead, their rewards and spread; also of one task."""
    with reading(request, run) as cursor:
        return json_answer(queries.group_steps(cursor, group_id, task_id))


@router.get("/sessions/staleness", responses=answers(queries.Staleness))
def session_staleness(request: Request, run: RunParameter = None) -> Response:
    """Show how many versions of the weights the samples are behind, by step and over the run.

    It follows from the step and the numeric `model_version` of sessions; the freshest sample counts as 0.
    """
    with reading(request, run) as cursor:
        return json_answer(queries.staleness(cursor))


@router.get("/sessions/record", responses=answers(dict[str, Any]))
def session_record(
    request: Request, session_id: Annotated[str, Query(max_length=1000)], run: RunParameter = None
) -> Response:
    """Show the record of one session, as files hold it."""
    with reading(request, run) as cursor:
        found = queries.session_record(cursor, session_id)
    if found is None:
        raise HTTPException(404, f"there is no session {session_id[:80]!r} in this run.")
    return Response(record_line(found), media_type="application/json")


@router.get("/sessions/transcript", responses=answers(queries.Transcript))
def session_transcript(
    request: Request,
    session_id: Annotated[str, Query(max_length=1000)],
    max_characters: Annotated[int, Query(ge=1, le=MAX_CHARACTERS, description="Of text, in all.")] = 1_000_000,
    run: RunParameter = None,
) -> Response:
    """Show a session as a conversation: prompt, turns, tool calls and reward, from the texts that were recorded."""
    with reading(request, run) as cursor:
        found = queries.session_transcript(cursor, session_id, max_characters)
    if found is None:
        raise HTTPException(404, f"there is no session {session_id[:80]!r} in this run.")
    return json_answer(found)
