"""What changed at a step: metrics, phases, errors, log lines and events, largest change first."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite, nan
from typing import Any, Final, Literal, NamedTuple

import msgspec

from rl_insight.diagnosis.change_points import Shape, change_at
from rl_insight.diagnosis.robust import median
from rl_insight.schema.json_values import json_number
from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.schema.records import read_object
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store.errors import QueryError
from rl_insight.store.queries import Cursor, step_metrics
from rl_insight.store.queries.steps import MAX_STEPS, StepWindow, check_steps, step_windows, stepped

MAX_WINDOW: Final = MAX_STEPS // 2 - 1
MAX_CHANGES: Final = 200
_MAX_ROWS: Final = 100_000
_MAX_NAMES: Final = 500
_NEW_SCORE: Final = 50.0
"""For an event that never happened before, or a NaN: they rank near the top."""
_RARE_EVENT_SCORE: Final = 10.0
_WARNING: Final = 30

Kind = Literal["step", "metric", "phase", "errors", "logs", "event"]


class Change(msgspec.Struct, frozen=True):
    """One thing that changed."""

    kind: Kind
    """`step` is the length of a step in seconds; `phase` is the median span of that name, in seconds; `errors` and
    `logs` are counts per step; an `event` happened at that step."""
    name: str
    shape: Shape | Literal["event"]
    """`shift`: to another level; `spike`: in a single step."""
    step: int
    """Where it changed: the requested step, or up to two steps away."""
    before: float | None
    """The level before; `after` is the new level, or the value of the spike."""
    after: float | None
    score: float
    """The size of the change relative to the noise of the series; fixed for events."""
    detail: dict[str, Any]
    """Attributes of an event; `value` if a metric is NaN or infinite."""


class Changes(msgspec.Struct, frozen=True):
    """What changed at a step, largest change first."""

    step: int
    first_step: int
    last_step: int
    """The steps that were compared."""
    series: int
    """The number of series that were compared."""
    changes: list[Change]


class _StepValues(NamedTuple):
    kind: Kind
    name: str
    values: Mapping[int, float]
    """Step to value."""
    is_count: bool = False


# Grouped by name id: grouping by the name itself takes twice as long.
_PHASES = """
    SELECT name_id, step, median(duration_ns) / 1e9, count(*) FILTER (status = 'error')
    FROM {spans} WHERE step BETWEEN $first AND $last AND {frequent} GROUP BY name_id, step
"""
_FREQUENT = f"""name_id IN (
    SELECT name_id FROM {{spans}} WHERE step BETWEEN $first AND $last GROUP BY name_id
    ORDER BY count(*) DESC LIMIT {_MAX_NAMES}
)"""  # noqa: S608  (constants)
_LOGS = """
    SELECT time_ns + clock_offset_ns AS at_ns, level, message FROM log_data
    JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE level >= $level AND at_ns >= $start AND at_ns < $end ORDER BY at_ns LIMIT $most
"""
_EVENTS = """
    SELECT time_ns + clock_offset_ns AS at_ns, name, attributes FROM event_data
    JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE session_id IS NULL AND name <> $stacks AND at_ns >= $start AND at_ns < $end ORDER BY at_ns LIMIT $most
"""
_VARIABLE = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?|'[^']*'|\"[^\"]*\"")
_TEMPLATE_LENGTH: Final = 120


def what_changed(cursor: Cursor, step: int, window: int = 40) -> Changes:
    """Return what changed at a step, largest change first: metrics, phases, errors, warnings in the log, events.

    A series has changed if its level shifts there, or if its value is an outlier there. Levels are
    medians, and the size of a change is relative to the noise of the series.

    Raises:
        QueryError: the run has no such finished step, or the window is out of range.
    """
    if not 1 <= window <= MAX_WINDOW:
        raise QueryError(f"the window of {window} steps is out of range: ask for 1 to {MAX_WINDOW}.")
    check_steps(step - window, step + window)
    _, windows = step_windows(cursor)
    chosen = sorted(one for one in windows if abs(one.step - step) <= window and one.end_ns is not None)
    places = {one.step: place for place, one in enumerate(chosen)}
    if step not in places:
        raise QueryError(f"no changes for step {step}: it has not finished, or does not exist.")
    series = list(_every_series(cursor, chosen))
    found = [change for one in series if (change := _change_of(one, chosen, places[step])) is not None]
    found += _events(cursor, chosen, places[step])
    found.sort(key=lambda change: (-change.score, change.kind, change.name))
    return Changes(step, chosen[0].step, chosen[-1].step, len(series), found[:MAX_CHANGES])


def _change_of(series: _StepValues, chosen: list[StepWindow], place: int) -> Change | None:
    step = chosen[place].step
    known = dict.fromkeys((one.step for one in chosen), 0.0) | dict(series.values) if series.is_count else series.values
    finite = {one.step: known[one.step] for one in chosen if isfinite(known.get(one.step, nan))}
    if step in known and step not in finite:
        return _lost_number(series, step, finite)
    steps = list(finite)
    at = bisect_right(steps, step) - 1
    point = change_at(list(finite.values()), at, is_count=series.is_count) if at >= 0 else None
    if point is None:
        return None
    return Change(series.kind, series.name, point.shape, steps[point.place], point.before, point.after, point.score, {})


def _lost_number(series: _StepValues, step: int, finite: Mapping[int, float]) -> Change | None:
    """Return the change of a series that is NaN or infinite at a step, if it was finite in the step before."""
    before = [value for one, value in finite.items() if one < step]
    if step - 1 not in finite:
        return None
    detail = {"value": json_number(series.values[step])}
    return Change(series.kind, series.name, "spike", step, median(before), None, _NEW_SCORE, detail)


def _every_series(cursor: Cursor, chosen: list[StepWindow]) -> Iterator[_StepValues]:
    first, last = chosen[0].step, chosen[-1].step
    lengths = {one.step: (one.end_ns - one.start_ns) / 1e9 for one in chosen if one.end_ns is not None}
    yield _StepValues("step", "step time", lengths)
    metrics: dict[str, dict[int, float]] = {}
    for metric in step_metrics(cursor, first, last):
        metrics.setdefault(metric.name, {})[metric.step] = metric.average
    for name, values in metrics.items():
        yield _StepValues("metric", name, values)
    yield from _span_series(cursor, first, last)
    yield from _log_series(cursor, chosen)


def _span_series(cursor: Cursor, first: int, last: int) -> Iterator[_StepValues]:
    durations: dict[str, dict[int, float]] = {}
    errors: dict[str, dict[int, float]] = {}
    names = dict(cursor.execute("SELECT name_id, name FROM names").fetchall())
    spans = stepped(cursor, "span_data")
    frequent = _FREQUENT.format(spans=spans) if len(names) > _MAX_NAMES else "true"
    rows = cursor.execute(_PHASES.format(spans=spans, frequent=frequent), {"first": first, "last": last}).fetchall()
    for name_id, step, seconds, failed in rows:
        name = names[name_id]
        durations.setdefault(name, {})[step] = seconds
        if failed:
            errors.setdefault(name, {})[step] = float(failed)
    for name, values in durations.items():
        yield _StepValues("phase", name, values)
    for name, values in errors.items():
        yield _StepValues("errors", name, values, is_count=True)


def _log_series(cursor: Cursor, chosen: list[StepWindow]) -> Iterator[_StepValues]:
    counts: dict[str, Counter[int]] = {}
    for step, (level, message) in _by_step(cursor, _LOGS, chosen, {"level": _WARNING}):
        name = f"{'error' if level > _WARNING else 'warning'}: {_template(message)}"
        if name in counts or len(counts) < _MAX_NAMES:
            counts.setdefault(name, Counter())[step] += 1
    for name, found in counts.items():
        yield _StepValues("logs", name, {step: float(count) for step, count in found.items()}, is_count=True)


def _template(message: str) -> str:
    """Return a message without the numbers and quoted strings that vary between lines.

    >>> _template("request 17 took 3.5 s for 'a b'")
    'request # took # s for #'
    """
    return _VARIABLE.sub("#", message[: 2 * _TEMPLATE_LENGTH])[:_TEMPLATE_LENGTH]


def _events(cursor: Cursor, chosen: list[StepWindow], place: int) -> Iterable[Change]:
    """Return the events at a step or just before it that are rare in earlier steps."""
    near = {chosen[at].step for at in range(max(0, place - 1), place + 1)}
    earlier: Counter[str] = Counter()
    here: dict[str, tuple[int, str | None]] = {}
    for step, (name, attributes) in _by_step(cursor, _EVENTS, chosen, {"stacks": STACKS_EVENT}):
        if step in near:
            here.setdefault(name, (step, attributes))
        elif step < chosen[place].step:
            earlier[name] += 1
    for name, (step, attributes) in here.items():
        if earlier[name] * 10 <= place:  # at most every tenth step
            score = _RARE_EVENT_SCORE if earlier[name] else _NEW_SCORE
            shown = "configuration recorded" if name == CONFIG_EVENT else name
            yield Change("event", shown, "event", step, None, None, score, read_object(attributes))


def _by_step(
    cursor: Cursor, sql: str, chosen: list[StepWindow], given: dict[str, Any]
) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield rows of a query whose first column is a time, with the step of that time."""
    starts = [one.start_ns for one in chosen]
    more = {"start": starts[0], "end": chosen[-1].end_ns, "most": _MAX_ROWS}
    for at_ns, *row in cursor.execute(sql, given | more).fetchall():
        yield chosen[bisect_right(starts, at_ns) - 1].step, tuple(row)
