"""Metrics: the list, and their values over time or training steps."""

from __future__ import annotations

from collections.abc import Iterable
from math import isfinite
from typing import Any, Literal, get_args

import duckdb
import msgspec

from rl_insight.metrics import GAUGE, KINDS
from rl_insight.metrics.canonical import Quantity, interest, is_hardware, quantity_metrics
from rl_insight.metrics.kinds import Aggregation
from rl_insight.schema.json_values import json_form
from rl_insight.schema.records import read_object
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import INTEGER_LIMIT, Cursor, Parameters, json_path, used
from rl_insight.store.queries.steps import stepped

Axis = Literal["time", "step"]

MAX_POINTS = 5_000
MAX_LINES = 500
PROCESS_LABELS = ("process_id", "role", "rank", "host")
"""Every series also has these labels, from the process that recorded it."""


class Metric(msgspec.Struct, frozen=True):
    """A metric and how many series it has."""

    name: str
    kind: str
    documentation: str
    series: int
    labels: list[str]
    """The names of its labels, without those of the process."""
    quantity: Quantity | None
    """Which quantity of the run it shows, for at most one gauge per quantity: `reward`, `throughput` or `staleness`."""
    interest: int
    """Its place in the order in which people look at metrics: 0 comes first, equal places by name."""
    is_hardware: bool
    """Whether it is about a machine or a process rather than about training."""


class Matcher(msgspec.Struct, frozen=True):
    """A condition on a label: equal to a string, or fully matched by a regular expression (RE2)."""

    label: str
    value: str
    regex: bool = False


def parse_matchers(texts: Iterable[str] | None) -> list[Matcher]:
    """Parse conditions on labels: `label=value`, or `label=~regex`.

    >>> parse_matchers(["role=rollout", "rank=~1."])
    [Matcher(label='role', value='rollout', regex=False), Matcher(label='rank', value='1.', regex=True)]

    Raises:
        QueryError: one of them cannot be parsed.
    """
    found = []
    for text in texts or ():
        label, equals, value = text.partition("=")
        if not label or not equals:
            raise QueryError(f"cannot parse match {text[:80]!r}: write label=value or label=~regex.")
        is_regex = value.startswith("~")
        found.append(Matcher(label, value.removeprefix("~") if is_regex else value, regex=is_regex))
    return found


class Line(msgspec.Struct, frozen=True):
    """One line of a chart: the labels it is grouped by, and its points."""

    labels: dict[str, str]
    x: list[int]
    """Aligned nanoseconds (the start of each interval), or steps."""
    y: list[float | str | None]
    """In JSON, values that JSON lacks are the strings `NaN`, `Infinity` and `-Infinity`."""

    def smoothed(self, weight: float) -> Line:
        """Return the line as exponential moving averages, in which a point has `weight` times the weight of the next.

        The average is not biased toward zero at the start: the first point is unchanged. Non-finite points are
        unchanged and ignored.
        """
        total, weights = 0.0, 0.0
        values: list[float | str | None] = []
        for y in self.y:
            if isinstance(y, float) and isfinite(y):
                total, weights = total * weight + y, weights * weight + 1.0
                values.append(total / weights)
            else:
                values.append(y)
        return msgspec.structs.replace(self, y=values)

    def for_json(self) -> Line:
        """Return the line with values that JSON can represent."""
        return msgspec.structs.replace(self, y=json_form(self.y))


_METRICS = """
    SELECT name, kind, any_value(documentation), count(*),
        list_sort(list_distinct(flatten(list(json_keys(labels)))))
    FROM series GROUP BY name, kind ORDER BY name, kind
"""

# The table is small: one row per metric, label set and process.
_SERIES = """
    SELECT series_id, kind, series.labels, clock_offset_ns, process_id, role, coalesce(rank::VARCHAR, ''), host
    FROM series JOIN processes USING (process) WHERE name = $name
"""
_MATCHES = """
    SELECT value FROM (SELECT DISTINCT unnest($values) AS value) WHERE regexp_full_match(value, $pattern)
"""

_LABEL_VALUES = """
    SELECT DISTINCT {value} AS value FROM series JOIN processes USING (process)
    WHERE ($name::VARCHAR IS NULL OR name = $name::VARCHAR) AND {value} IS NOT NULL ORDER BY value LIMIT 1000
"""

_CHOSEN = """
    WITH chosen AS (
        SELECT unnest($series)::INTEGER AS series_id, unnest($lines)::INTEGER AS line,
            unnest($offsets)::BIGINT AS offset_ns
    ),
"""
_VALUES = """
    points AS (
        SELECT line, series_id, time_ns + offset_ns AS at_ns, value, {x} AS x
        FROM {table} JOIN chosen USING (series_id)
        WHERE time_ns + offset_ns >= $start AND time_ns + offset_ns < $end AND {has_x}
    )
"""
_GAUGE = {
    "avg": "SELECT line, x, avg(value) FROM points GROUP BY line, x ORDER BY line, x",
    "min": "SELECT line, x, min(value) FROM points GROUP BY line, x ORDER BY line, x",
    "max": "SELECT line, x, max(value) FROM points GROUP BY line, x ORDER BY line, x",
    "count": "SELECT line, x, count(*)::DOUBLE FROM points GROUP BY line, x ORDER BY line, x",
    "last": "SELECT line, x, arg_max(value, at_ns) FROM points GROUP BY line, x ORDER BY line, x",
    # A sum adds series up, each with its latest value of the interval.
    "sum": """
        SELECT line, x, sum(value) FROM (
            SELECT line, x, series_id, arg_max(value, at_ns) AS value FROM points GROUP BY line, x, series_id
        ) GROUP BY line, x ORDER BY line, x
    """,
}
# Counters arrive as totals since their process started. A sample adds its total minus the previous one; the first
# sample adds all of it, and so does one that is smaller than its predecessor, because the counter was reset.
_INCREASE = """
    points AS (
        SELECT line, series_id, time_ns + offset_ns AS at_ns, value, {x} AS x, {has_x} AS wanted
        FROM {table} JOIN chosen USING (series_id)
        WHERE time_ns + offset_ns >= $start AND time_ns + offset_ns < $end
        UNION ALL
        SELECT line, series_id, max(time_ns + offset_ns), arg_max(value, time_ns), NULL, false
        FROM sample_data JOIN chosen USING (series_id)
        WHERE time_ns + offset_ns < $start GROUP BY line, series_id
    ),
    changes AS (
        SELECT line, x, wanted, value,
            lag(value, 1, 0.0) OVER (PARTITION BY series_id ORDER BY at_ns, value) AS before
        FROM points
    )
    SELECT line, x, sum(CASE WHEN value >= before THEN value - before ELSE value END)
    FROM changes WHERE wanted GROUP BY line, x ORDER BY line, x
"""
AXES = {
    "time": ("(time_ns + offset_ns) // $width * $width", "true"),
    "step": ("step // $width * $width", "step IS NOT NULL"),
}


def metrics(cursor: Cursor) -> list[Metric]:
    """Return the metrics with their kinds and labels, by name."""
    rows = cursor.execute(_METRICS).fetchall()
    gauges = [name for name, kind, *_ in rows if kind == GAUGE.name]
    shown = {(name, GAUGE.name): quantity for quantity, name in quantity_metrics(gauges).items()}
    return [
        Metric(name, kind, documentation, series, labels, shown.get((name, kind)), interest(name), is_hardware(name))
        for name, kind, documentation, series, labels in rows
    ]


def label_values(cursor: Cursor, label: str, metric: str | None = None) -> list[str]:
    """Return the values of a label, for one metric or all; at most a thousand."""
    value = f"{label}::VARCHAR" if label in PROCESS_LABELS else "json_extract_string(series.labels, $path)"
    given = {"name": metric, "path": json_path(label)}
    sql = _LABEL_VALUES.format(value=value)
    rows = cursor.execute(sql, used(sql, given)).fetchall()
    return [value for (value,) in rows]


class LabeledSeries(msgspec.Struct, frozen=True):
    """A series of a metric: its labels, and those of the process that recorded it."""

    series_id: int
    offset_ns: int
    labels: dict[str, str]
    process: dict[str, str]

    @property
    def every(self) -> dict[str, str]:
        """All labels; those of the series take precedence."""
        return self.process | self.labels


def series_of(cursor: Cursor, metric: str) -> tuple[str, list[LabeledSeries]]:
    """Return the kind of a metric and its series."""
    rows = cursor.execute(_SERIES, {"name": metric}).fetchall()
    found = [
        LabeledSeries(series_id, offset_ns, read_object(labels), dict(zip(PROCESS_LABELS, place, strict=True)))
        for series_id, _, labels, offset_ns, *place in rows
    ]
    return rows[-1][1] if rows else "", found


class Chosen(msgspec.Struct, frozen=True):
    """The series of a query and the lines they belong to."""

    kind: str
    series: list[int]
    lines: list[int]
    """For each series, the position of its line in `labels`."""
    offsets: list[int]
    labels: list[dict[str, str]]

    def parameters(self) -> Parameters:
        """Return the SQL parameters."""
        return {"series": self.series, "lines": self.lines, "offsets": self.offsets}


def kept_labels(group_by: list[str] | None) -> list[str] | None:
    """Return the labels that lines are grouped by; None, or a star, keeps every series separate."""
    return None if group_by is None or "*" in group_by else [label for label in group_by if label]


def choose(cursor: Cursor, metric: str, matchers: list[str] | None, group_by: list[str] | None) -> Chosen:
    """Find the series of a metric that match, and group them; `group_by=None` keeps every series separate.

    Raises:
        QueryError: a condition cannot be parsed, a regular expression is wrong, or there are too many groups.
    """
    kind, found = series_of(cursor, metric)
    for matcher in parse_matchers(matchers):
        values = [one.every.get(matcher.label, "") for one in found]
        keep = _matching(cursor, matcher, values)
        found = [one for one, kept in zip(found, keep, strict=True) if kept]
    lines: dict[tuple[tuple[str, str], ...], int] = {}
    numbers = []
    for one in found:
        every = one.every
        shown = (
            one.labels | {"process_id": every["process_id"]}
            if group_by is None
            else {label: every[label] for label in group_by if every.get(label)}
        )
        numbers.append(lines.setdefault(tuple(sorted(shown.items())), len(lines)))
    if len(lines) > MAX_LINES:
        raise QueryError(
            f"{len(lines)} lines are too many to show: at most {MAX_LINES}. Filter, or group by fewer labels."
        )
    ids, offsets = [one.series_id for one in found], [one.offset_ns for one in found]
    return Chosen(kind, ids, numbers, offsets, [dict(line) for line in lines])


def _matching(cursor: Cursor, matcher: Matcher, values: list[str]) -> list[bool]:
    if not matcher.regex:
        return [value == matcher.value for value in values]
    if not values:
        return []
    # DuckDB's regular expressions take linear time on any input, Python's do not.
    try:
        rows = cursor.execute(_MATCHES, {"values": values, "pattern": matcher.value}).fetchall()
    except duckdb.InvalidInputException as error:
        raise QueryError(f"the regular expression {matcher.value[:80]!r} is not valid: {error}") from error
    matching = {value for (value,) in rows}
    return [value in matching for value in values]


def range_query(
    cursor: Cursor,
    metric: str,
    *,
    start_ns: int,
    end_ns: int,
    width: int,
    aggregation: Aggregation | None = None,
    matchers: list[str] | None = None,
    group_by: list[str] | None = None,
    axis: Axis = "time",
    smoothing: float = 0.0,
) -> list[Line]:
    """Return the values of a gauge or counter in intervals; with `smoothing`, as exponential moving averages.

    Args:
        cursor: a read cursor of the run.
        metric: the metric's name.
        start_ns: aligned time.
        end_ns: aligned time, exclusive.
        width: the interval width, in nanoseconds or steps.
        aggregation: default `avg` for gauges, `rate` (per second, or per step) for counters.
        matchers: conditions on labels, as `label=value` or `label=~regex`, all of which must hold.
        group_by: labels to group by; None or `*` keeps every series separate, an empty list makes one line.
        axis: `time` or `step`.
        smoothing: the weight of a point relative to the next.
    """
    check_range(start_ns, end_ns, width, axis)
    chosen = choose(cursor, metric, matchers, kept_labels(group_by))
    how = aggregation or KINDS.get(chosen.kind, GAUGE).aggregation
    if how not in get_args(Aggregation):
        raise QueryError(f"aggregation {how!r} is unknown: it must be one of {', '.join(get_args(Aggregation))}.")
    if not chosen.series:
        return []
    template = _INCREASE if how in {"rate", "increase"} else _VALUES + _GAUGE[how]
    parameters = chosen.parameters() | {"start": start_ns, "end": end_ns, "width": width}
    rows = cursor.execute(_CHOSEN + template.format(**on_axis(cursor, "sample_data", axis)), parameters).fetchall()
    per = (width / 1e9 if axis == "time" else width) if how == "rate" else 1.0
    return [line.smoothed(smoothing) for line in _lines(chosen.labels, rows, per)]


def on_axis(cursor: Cursor, table: str, axis: str) -> dict[str, str]:
    """Return the axis and the table of values as SQL fragments."""
    x, has_x = AXES[axis]
    return {"x": x, "has_x": has_x, "table": stepped(cursor, table) if axis == "step" else table}


def check_range(start_ns: int, end_ns: int, width: int, axis: str) -> None:
    """Refuse a range that is empty or has too many points, with a `QueryError`."""
    if axis not in AXES:
        raise QueryError(f"axis {axis!r} is unknown: it must be time or step.")
    if not -INTEGER_LIMIT < start_ns < end_ns < INTEGER_LIMIT:
        raise QueryError(f"the range from {start_ns} to {end_ns} is empty or out of range.")
    if not 1 <= width < INTEGER_LIMIT:
        raise QueryError(f"the width {width} is out of range: it must be at least 1.")
    if axis == "time" and (end_ns - start_ns) // width > MAX_POINTS:
        raise QueryError(f"more than {MAX_POINTS} points: use wider intervals.")


def _lines(labels: list[dict[str, str]], rows: list[tuple[Any, ...]], per: float) -> list[Line]:
    lines = [Line(label, [], []) for label in labels]
    for line, x, y in rows:
        lines[line].x.append(x)
        lines[line].y.append(None if y is None else y / per)
    return [line for line in lines if line.x]
