"""Metrics: which there are, and their values over time or training steps."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import (
    RunParameter,
    TextParameter,
    answers,
    json_answer,
    reading,
)
from rl_insight.store import queries
from rl_insight.store.queries.metrics import Aggregation, Axis

router = APIRouter(prefix="/api/v1/metrics", tags=["metrics"])

Moment = Annotated[int, Query(gt=-(2**62), lt=2**62, description="Aligned nanoseconds since 1970.")]
Width = Annotated[int, Query(ge=1, lt=2**62, description="Of an interval: nanoseconds, or steps on that axis.")]
Name = Annotated[str, Query(max_length=1000, description="The metric's name.")]
Matches = Annotated[
    list[str] | None, Query(max_length=50, description="`label=value`, or `label=~regex` (RE2); all must hold.")
]
Groups = Annotated[
    list[str] | None,
    Query(max_length=50, description="Labels to keep apart; `*` (the default) keeps every series apart."),
]


@router.get("", responses=answers(list[queries.Metric]))
def metrics(request: Request, run: RunParameter = None) -> Response:
    """List the metrics with their kinds and labels."""
    with reading(request, run) as cursor:
        return json_answer(queries.metrics(cursor))


@router.get("/labels", responses=answers(list[str]))
def label_values(
    request: Request,
    label: Annotated[str, Query(max_length=1000)],
    metric: TextParameter = None,
    run: RunParameter = None,
) -> Response:
    """List the values of a label."""
    with reading(request, run) as cursor:
        return json_answer(queries.label_values(cursor, label, metric))


@router.get("/range", responses=answers(list[queries.Line]))
def metric_range(
    request: Request,
    metric: Name,
    start_ns: Moment,
    end_ns: Moment,
    width: Width,
    aggregation: Aggregation | None = None,
    match: Matches = None,
    group_by: Groups = None,
    axis: Axis = "time",
    smoothing: Annotated[float, Query(ge=0, le=0.999, description="Weight of a point relative to the next.")] = 0.0,
    run: RunParameter = None,
) -> Response:
    """Show the values of a gauge or counter in intervals; with `smoothing`, as exponential moving averages."""
    with reading(request, run) as cursor:
        lines = queries.range_query(
            cursor,
            metric,
            start_ns=start_ns,
            end_ns=end_ns,
            width=width,
            aggregation=aggregation,
            matchers=queries.parse_matchers(match),
            group_by=_groups(group_by),
            axis=axis,
        )
        return json_answer([line.smoothed(smoothing).for_json() for line in lines])


@router.get("/quantiles", responses=answers(list[queries.Line]))
def metric_quantiles(
    request: Request,
    metric: Name,
    start_ns: Moment,
    end_ns: Moment,
    width: Width,
    share: Annotated[list[Annotated[float, Query(ge=0, le=1)]], Query(max_length=20)] = [0.5, 0.95, 0.99],  # noqa: B006
    match: Matches = None,
    group_by: Groups = None,
    axis: Axis = "time",
    run: RunParameter = None,
) -> Response:
    """Show quantiles of a distribution in intervals; the share is in the label `quantile`."""
    with reading(request, run) as cursor:
        lines = queries.quantiles(
            cursor,
            metric,
            start_ns=start_ns,
            end_ns=end_ns,
            width=width,
            shares=share,
            matchers=queries.parse_matchers(match),
            group_by=_groups(group_by) or [],
            axis=axis,
        )
        return json_answer([line.for_json() for line in lines])


@router.get("/heatmap", responses=answers(queries.HeatMap))
def metric_heat_map(
    request: Request,
    metric: Name,
    start_ns: Moment,
    end_ns: Moment,
    width: Width,
    rows: Annotated[int, Query(ge=1, le=1000)] = 40,
    match: Matches = None,
    axis: Literal["time", "step"] = "time",
    run: RunParameter = None,
) -> Response:
    """Show how the values of a distribution were spread in each interval."""
    with reading(request, run) as cursor:
        found = queries.heat_map(
            cursor,
            metric,
            start_ns=start_ns,
            end_ns=end_ns,
            width=width,
            rows=rows,
            matchers=queries.parse_matchers(match),
            axis=axis,
        )
        return json_answer(found)


def _groups(given: list[str] | None) -> list[str] | None:
    if given is None or "*" in given:
        return None
    return [label for label in given if label]
