"""Distributions over time: quantiles and heat maps from histograms that grow since their process started."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from rl_insight.schema.histogram import BUCKETS_PER_OCTAVE, lower_bound, quantile, upper_bound
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.metrics import _CHOSEN, Axis, Chosen, Line, Matcher, check_range, choose


class HeatMap(msgspec.Struct, frozen=True):
    """How many values fell where, in each interval."""

    x: list[int]
    lower: list[float]
    """The lower end of each row."""
    upper: list[float]
    counts: list[list[int]]
    """A list for each x, with a count for each row."""


# The latest state of each series in each interval, and the one before the range, which the first is compared with.
_STATES = """
    states AS (
        SELECT line, series_id, {x} AS x, time_ns + offset_ns AS at_ns, count, codes, counts
        FROM histogram_data JOIN chosen USING (series_id)
        WHERE time_ns + offset_ns >= $start AND time_ns + offset_ns < $end AND {has_x}
        UNION ALL
        SELECT line, series_id, NULL, time_ns + offset_ns, count, codes, counts
        FROM histogram_data JOIN chosen USING (series_id)
        WHERE time_ns + offset_ns < $start
    )
    SELECT line, series_id, x, arg_max(count, at_ns), arg_max(codes, at_ns), arg_max(counts, at_ns)
    FROM states GROUP BY line, series_id, x ORDER BY line, series_id, max(at_ns)
"""
_AXES = {
    "time": ("(time_ns + offset_ns) // $width * $width", "true"),
    "step": ("step // $width * $width", "step IS NOT NULL"),
}
Buckets = dict[int, int]


def quantiles(
    cursor: Cursor,
    metric: str,
    *,
    start_ns: int,
    end_ns: int,
    width: int,
    shares: list[float],
    matchers: list[Matcher] | None = None,
    group_by: list[str] | None = None,
    axis: Axis = "time",
) -> list[Line]:
    """Return quantiles (shares from 0 to 1) of what was recorded in each interval; a line for each group and share.

    Values are within 2.2 % of the exact ones. The share stands in the label `quantile`.
    """
    if not shares or not all(0.0 <= share <= 1.0 for share in shares):
        raise QueryError(f"the shares {shares} are out of range: give numbers from 0 to 1.")
    check_range(start_ns, end_ns, width, axis)
    chosen = choose(cursor, metric, matchers, [] if group_by is None else group_by)
    merged = _merged(cursor, chosen, start_ns, end_ns, width, axis)
    found = []
    for line, labels in enumerate(chosen.labels):
        intervals = sorted((x, buckets) for (of, x), buckets in merged.items() if of == line)
        for share in shares:
            ys = [quantile(buckets, share) for _, buckets in intervals]
            found.append(Line(labels | {"quantile": f"{share:g}"}, [x for x, _ in intervals], ys))
    return [line for line in found if line.x]


def heat_map(
    cursor: Cursor,
    metric: str,
    *,
    start_ns: int,
    end_ns: int,
    width: int,
    rows: int = 40,
    matchers: list[Matcher] | None = None,
    axis: Axis = "time",
) -> HeatMap:
    """Return how the values of a metric were spread in each interval, in at most about `rows` rows."""
    if not 1 <= rows <= 1_000:
        raise QueryError(f"{rows} rows are out of range: ask for 1 to 1000.")
    check_range(start_ns, end_ns, width, axis)
    chosen = choose(cursor, metric, matchers, [])
    merged = _merged(cursor, chosen, start_ns, end_ns, width, axis)
    codes = sorted({code for buckets in merged.values() for code in buckets})
    if not codes:
        return HeatMap([], [], [], [])
    per_row = _codes_per_row(codes, rows)
    keys = sorted({_row_of(code, per_row) for code in codes})
    position = {key: place for place, key in enumerate(keys)}
    members: dict[int, list[int]] = {}
    for code in codes:
        members.setdefault(position[_row_of(code, per_row)], []).append(code)
    counts = []
    xs = sorted({x for _, x in merged})
    for x in xs:
        row = [0] * len(keys)
        for code, count in merged[0, x].items():
            row[position[_row_of(code, per_row)]] += count
        counts.append(row)
    return HeatMap(
        xs,
        [lower_bound(members[place][0]) for place in range(len(keys))],
        [upper_bound(members[place][-1]) for place in range(len(keys))],
        counts,
    )


def _codes_per_row(codes: list[int], rows: int) -> int:
    """Return how many neighbouring buckets share a row: a power of two, at most some octaves."""
    per_row = 1
    while len({_row_of(code, per_row) for code in codes}) > rows and per_row < 4096 * BUCKETS_PER_OCTAVE:
        per_row *= 2
    return per_row


def _row_of(code: int, per_row: int) -> tuple[int, int]:
    """Return the sort key of a bucket's row; negative values, zero and positive ones never share one."""
    sign = (code > 0) - (code < 0)
    return sign, code // per_row


def _merged(
    cursor: Cursor, chosen: Chosen, start_ns: int, end_ns: int, width: int, axis: str
) -> dict[tuple[int, int], Buckets]:
    """Return what was recorded in each interval of each line."""
    merged: dict[tuple[int, int], Buckets] = {}
    if not chosen.series:
        return merged
    for line, x, buckets in _increases(cursor, chosen, start_ns, end_ns, width, axis):
        total = merged.setdefault((line, x), {})
        for code, count in buckets.items():
            total[code] = total.get(code, 0) + count
    return {key: buckets for key, buckets in merged.items() if buckets}


def _increases(
    cursor: Cursor, chosen: Chosen, start_ns: int, end_ns: int, width: int, axis: str
) -> Iterator[tuple[int, int, Buckets]]:
    x_sql, has_x = _AXES[axis]
    sql = _CHOSEN + _STATES.format(x=x_sql, has_x=has_x)
    parameters = chosen.parameters() | {"start": start_ns, "end": end_ns, "width": width}
    series = None
    before: Buckets = {}
    before_count = 0
    for line, series_id, x, count, codes, counts in cursor.execute(sql, parameters).fetchall():
        if series_id != series:
            series, before, before_count = series_id, {}, 0
        now = dict(zip(codes, counts, strict=True))
        if x is not None:
            yield line, x, _increase(before, now) if count >= before_count else now
        before, before_count = now, count


def _increase(before: Mapping[int, int], now: Mapping[int, int]) -> Buckets:
    """Return what was added; a bucket that shrank began anew."""
    added = {}
    for code, count in now.items():
        known = before.get(code, 0)
        more = count - known if count >= known else count
        if more:
            added[code] = more
    return added
