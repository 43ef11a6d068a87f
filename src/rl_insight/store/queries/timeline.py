"""Lanes, and their spans in a window of time: at most a few blocks per pixel.

Spans shorter than a pixel are merged, so the size of the answer depends on the view and not on the run. There are three
sources, each read only as far as the window requires:

- `span_data` through its order in time (DuckDB skips the parts of the file outside the window),
- `long_spans` for those that started before it, and `open_span_data`,
- in wide windows the rollups instead of the short spans of `span_data`.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Parameters, structs, used
from rl_insight.store.queries.process_ends import LANE_ENDS, register_ends
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.steps import stepped_spans
from rl_insight.store.rollup import rolled_up_rows
from rl_insight.store.tables import LONG_SPAN_NS, ROLLUPS

MAX_PIXELS = 8192
MAX_BLOCKS = 40_000
MANY_SPANS = 150_000
"""With more spans in a window than this, short spans merge across names too, and rollups are used where they fit."""


_APART = 4
"""Spans of one name that begin in the same pixel and are shorter than this many are one block."""


class Lane(msgspec.Struct, frozen=True):
    """One line of the timeline."""

    lane_id: int
    lane: str | None
    """None: the process's own lane."""
    process_id: str
    role: str
    rank: int | None
    host: str
    spans: int
    open_spans: int
    first_ns: int | None
    last_ns: int | None


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks in columns of equal length, by lane, depth and start; times are aligned nanoseconds."""

    start_ns: int
    end_ns: int
    pixel_ns: int
    """Spans shorter than this may be merged; larger than requested if the answer would have been too long."""
    names: list[str]
    lane_id: list[int]
    depth: list[int]
    name: list[int]
    """Position in `names`; for merged blocks of several names, that of the longest span."""
    block_start_ns: list[int]
    block_end_ns: list[int]
    count: list[int]
    """How many spans the block represents."""
    busy_ns: list[int]
    """The sum of their durations."""
    errors: list[int]
    open: list[bool]
    """Whether the block is in flight; the work that a process left open when it ended or fell silent is not."""
    span_id: list[str]
    """The span, or the longest of the merged ones."""
    parent: list[int]
    """Position of the block of the span's parent on the same lane; -1 if it is unknown or not in the answer."""
    step: list[int | None] | None = None
    """The training step of that span; null unless requested."""


# The widest rollup covers all spans but the newest and those too long for it; reading every span takes ten times as
# long.
_LANES = """
    WITH ended AS (
        SELECT lane_id, sum(spans)::BIGINT AS spans, min(first_ns) AS first_ns, max(last_ns) AS last_ns FROM (
            SELECT lane_id, sum(spans) AS spans, min(start_ns) AS first_ns, max(end_ns) AS last_ns
            FROM {table} GROUP BY lane_id
            UNION ALL
            SELECT lane_id, count(*), min(start_ns), max(start_ns + duration_ns)
            FROM span_data WHERE rowid >= $rolled_up GROUP BY lane_id
            UNION ALL
            SELECT lane_id, count(*), min(start_ns), max(start_ns + duration_ns)
            FROM span_data WHERE rowid < $rolled_up AND duration_ns >= $width GROUP BY lane_id
        ) GROUP BY lane_id
    ),
    running AS (
        SELECT lane_id, count(*) AS spans, min(start_ns) AS first_ns, max(start_ns) AS last_ns
        FROM open_span_data GROUP BY lane_id
    )
    SELECT lane_id, lane, process_id, role, rank, host, coalesce(ended.spans, 0), coalesce(running.spans, 0),
        least(ended.first_ns, running.first_ns) + clock_offset_ns,
        greatest(ended.last_ns, running.last_ns) + clock_offset_ns
    FROM lanes JOIN processes USING (process) LEFT JOIN ended USING (lane_id) LEFT JOIN running USING (lane_id)
    WHERE ended.spans IS NOT NULL OR running.spans IS NOT NULL
    ORDER BY role, rank NULLS LAST, process_id, lane NULLS FIRST
"""

_VIEW = """
    WITH lane_times AS (
        SELECT lane_id, clock_offset_ns FROM lanes JOIN processes USING (process)
        WHERE $lanes::INTEGER[] IS NULL OR list_contains($lanes::INTEGER[], lane_id)
    ),
    found AS (
"""

_SPANS = """
        SELECT lane_id, depth, name_id, span_id, {parent} AS parent_id, start_ns + clock_offset_ns AS start_ns,
            start_ns + clock_offset_ns + duration_ns AS end_ns, duration_ns AS longest_ns, 1 AS spans,
            duration_ns::DOUBLE AS busy_ns, (status = 'error')::BIGINT AS errors, false AS is_open
        FROM {table} JOIN lane_times USING (lane_id)
        WHERE {which} AND start_ns + clock_offset_ns < $end AND start_ns + clock_offset_ns + duration_ns >= $start
        UNION ALL
"""

_RECORDED = "start_ns >= $from_ns AND start_ns < $until_ns AND "
_EVERY = "duration_ns < $long"
_SINGLE = "duration_ns >= $at_least AND duration_ns < $long AND rowid < $from_row"
_TAIL = "duration_ns < $long AND rowid >= $from_row"
_LONG_SPANS = _SPANS.format(table="long_spans", parent="0::UBIGINT", which="duration_ns >= $at_least")
_OPEN_SPANS = f"""
        SELECT lane_id, depth, name_id, span_id, parent_id, start_ns + clock_offset_ns,
            greatest(start_ns + clock_offset_ns, until_ns), greatest(until_ns - start_ns - clock_offset_ns, 0), 1,
            greatest(until_ns - start_ns - clock_offset_ns, 0)::DOUBLE, 0, is_live
        FROM open_span_data JOIN lane_times USING (lane_id) {LANE_ENDS}
        WHERE start_ns + clock_offset_ns < $end AND greatest(start_ns + clock_offset_ns, until_ns) >= $start
"""  # noqa: S608  (constants)

_ROLLED_UP = """
        UNION ALL
        SELECT lane_id, depth, longest_name_id, longest_id, 0::UBIGINT, start_ns + clock_offset_ns,
            end_ns + clock_offset_ns, longest_ns, spans, busy_ns, errors, false
        FROM {table} JOIN lane_times USING (lane_id)
        WHERE start_ns >= $from_ns AND start_ns < $until_ns
            AND start_ns + clock_offset_ns < $end AND end_ns + clock_offset_ns >= $start
"""

_MERGE = """
    )
    SELECT lane_id, depth, arg_max(name_id, longest_ns) AS name_id, min(start_ns) AS block_start_ns,
        max(end_ns) AS block_end_ns, sum(spans)::BIGINT AS count, sum(busy_ns) AS busy_ns,
        sum(errors)::BIGINT AS errors, is_open AS open, arg_max(span_id, longest_ns) AS span_id,
        arg_max(parent_id, longest_ns) AS parent_id
    FROM found
    GROUP BY lane_id, depth, is_open, start_ns // $pixel, longest_ns >= $pixel,
        CASE WHEN $by_name OR longest_ns >= $pixel THEN name_id ELSE -1 END,
        -- Spans that begin together but are visibly different are not merged: they run concurrently.
        CASE WHEN longest_ns >= $apart THEN span_id ELSE 0 END
"""

_COUNT = """
    SELECT coalesce(sum(spans), 0)::BIGINT, count(DISTINCT (lane_id, depth)) FROM rollup_10s {of_lanes}
    WHERE start_ns >= $from_ns AND start_ns < $until_ns
"""
_COUNT_RAW = """
    SELECT count(*) FROM span_data {of_lanes}
    WHERE start_ns >= $from_ns AND start_ns < $until_ns AND rowid >= $from_row
"""
_OF_LANES = "SEMI JOIN (SELECT unnest($lanes::INTEGER[]) AS lane_id) USING (lane_id)"

# Joining by lane as well takes twice as long; spans of other processes with the same id are dropped afterwards.
_STEPS = """
    SELECT place, lane_id, step FROM {ended} JOIN shown_spans USING (span_id)
    WHERE start_ns >= $from_ns AND start_ns <= $until_ns AND step IS NOT NULL
    UNION ALL
    SELECT place, lane_id, step FROM {opened} JOIN shown_spans USING (span_id)
    WHERE step IS NOT NULL
"""

_LONG_PARENTS = """
    SELECT lane_id, span_id, parent_id FROM span_data SEMI JOIN shown_spans USING (lane_id, span_id)
    WHERE duration_ns >= $long AND parent_id > 0
"""


def lanes(cursor: Cursor) -> list[Lane]:
    """Return the lanes that have spans, by role, rank, process and lane."""
    width, table = max((width, table) for table, width in ROLLUPS.items())
    given = {"rolled_up": rolled_up_rows(cursor), "width": width}
    return structs(cursor, Lane, _LANES.format(table=table), given)


def timeline(
    cursor: Cursor,
    *,
    start_ns: int,
    end_ns: int,
    pixels: int = 1000,
    now_ns: int,
    lane_ids: list[int] | None = None,
    max_blocks: int = MAX_BLOCKS,
    origin_ns: int = 0,
    with_steps: bool = False,
) -> Timeline:
    """Return the spans in a window of aligned time, with spans shorter than a pixel merged.

    Open spans reach up to now, or to the last sign of life of a process that ended or fell silent. Beyond `max_blocks`
    blocks, pixels get coarser. Times in the answer are relative to `origin_ns`: JavaScript numbers cannot represent
    nanoseconds since 1970 exactly. `with_steps` adds the step of each block.
    """
    if not 0 <= start_ns < end_ns < LAST_TIME_NS:
        raise QueryError(f"the window from {start_ns} to {end_ns} is empty or out of range.")
    limit = max(MAX_PIXELS, end_ns - start_ns)
    if not 1 <= pixels <= limit:
        raise QueryError(f"{pixels} pixels are out of range: ask for 1 to {limit}.")
    register_ends(cursor, now_ns)
    least, most = clock_offsets(cursor)
    rolled_up = rolled_up_rows(cursor)
    window = {"from_ns": start_ns - most - LONG_SPAN_NS, "until_ns": end_ns - least}
    parameters: Parameters = window | {
        "start": start_ns,
        "end": end_ns,
        "lanes": lane_ids,
        "long": LONG_SPAN_NS,
    }
    spans, lines = _count(cursor, window, rolled_up, lane_ids)
    many = spans > MANY_SPANS
    pixel = max(1, (end_ns - start_ns) // pixels)
    if many:
        # A dense view fills every pixel of every line, and parts of two at its ends; a few blocks are open or long
        # spans. Start with large enough pixels instead of a wasted query.
        room = max(1, (max_blocks - max_blocks // 50) // max(1, lines) - 1)
        pixel = min(max(pixel, -(-(end_ns - start_ns) // room)), end_ns - start_ns)
    while True:
        found = _blocks(cursor, parameters, pixel, rolled_up, many=many)
        rows = len(found["lane_id"])
        if rows <= max_blocks or pixel >= end_ns - start_ns:
            break
        pixel = _coarser(found, pixel, max_blocks)
        many = True
    answer = _timeline(cursor, found, start_ns, end_ns, pixel)
    return msgspec.structs.replace(
        answer,
        start_ns=start_ns - origin_ns,
        end_ns=end_ns - origin_ns,
        block_start_ns=[time_ns - origin_ns for time_ns in answer.block_start_ns],
        block_end_ns=[time_ns - origin_ns for time_ns in answer.block_end_ns],
        step=_steps(cursor, answer, least, most) if with_steps else answer.step,
    )


def _steps(cursor: Cursor, answer: Timeline, least: int, most: int) -> list[int | None]:
    """Look up the steps of the spans in blocks; neither rollups nor `long_spans` have them."""
    if not answer.span_id:
        return []
    shown = {
        "span_id": np.array([int(text, 16) for text in answer.span_id], np.uint64),
        "place": np.arange(len(answer.span_id)),
    }
    cursor.register("shown_spans", shown)
    try:
        # A merged block starts with its earliest span; the longest starts at most a pixel and a rollup bucket later.
        near = 2 * answer.pixel_ns
        window = {"from_ns": min(answer.block_start_ns) - most, "until_ns": max(answer.block_start_ns) - least + near}
        found = cursor.execute(_STEPS.format(**stepped_spans(cursor)), window).fetchnumpy()
    finally:
        cursor.unregister("shown_spans")
    steps: list[int | None] = [None] * len(answer.span_id)
    for place, lane_id, step in zip(*(found[name].tolist() for name in ("place", "lane_id", "step")), strict=True):
        if lane_id == answer.lane_id[place]:
            steps[place] = step
    return steps


def _count(cursor: Cursor, window: Parameters, rolled_up: int, lane_ids: list[int] | None) -> tuple[int, int]:
    """Return approximately how many spans start in the window, and on how many lines (lane and depth)."""
    of_lanes = "" if lane_ids is None else _OF_LANES
    given = window if lane_ids is None else window | {"lanes": lane_ids}
    ((summed, lines),) = cursor.execute(_COUNT.format(of_lanes=of_lanes), given).fetchall()
    ((single,),) = cursor.execute(_COUNT_RAW.format(of_lanes=of_lanes), given | {"from_row": rolled_up}).fetchall()
    return int(summed + single), int(lines)


def _blocks(cursor: Cursor, parameters: Parameters, pixel: int, rolled_up: int, *, many: bool) -> dict[str, Any]:
    fitting = [(width, table) for table, width in ROLLUPS.items() if width <= pixel]
    parameters = parameters | {"pixel": pixel, "apart": _APART * pixel, "by_name": not many, "at_least": 0}
    if not many or not fitting:
        return _run(cursor, [_EVERY], "", parameters)
    width, table = max(fitting)
    # Spans not shorter than the rollup's bucket, and those not rolled up yet, are still read individually. From the
    # width of a long span on, the former are all in `long_spans`.
    parameters |= {
        "at_least": width,
        "from_row": rolled_up,
        "long": max(LONG_SPAN_NS, width),
        "from_ns": parameters["from_ns"] - 2 * width,
    }
    # Two simple conditions: DuckDB evaluates them in 75% of the time of one with OR.
    which = [_SINGLE, _TAIL] if width < LONG_SPAN_NS else [_TAIL]
    return _run(cursor, which, _ROLLED_UP.format(table=table), parameters)


def _coarser(found: dict[str, Any], pixel: int, max_blocks: int) -> int:
    """Return the pixel size, in powers of two, at which merging leaves few enough blocks."""
    lines = found["lane_id"].astype(np.int64) << 16 | found["depth"].astype(np.int64) << 1 | found["open"]
    order = np.lexsort((found["block_start_ns"], lines))
    lines, starts = lines[order], found["block_start_ns"][order]
    is_new_line = lines[1:] != lines[:-1]
    while True:
        pixel *= 2
        shared = 1 + int(np.count_nonzero(is_new_line | (np.diff(starts // pixel) != 0)))
        if shared <= max_blocks or pixel > starts.max() - starts.min():
            return pixel


def _run(cursor: Cursor, which: list[str], rolled_up: str, parameters: Parameters) -> dict[str, Any]:
    spans = (_SPANS.format(table="span_data", parent="parent_id", which=_RECORDED + one) for one in which)
    sql = "".join((_VIEW, *spans, _LONG_SPANS, _OPEN_SPANS, rolled_up, _MERGE))
    return cursor.execute(sql, used(sql, parameters)).fetchnumpy()


def _timeline(cursor: Cursor, found: dict[str, Any], start_ns: int, end_ns: int, pixel: int) -> Timeline:
    order = np.lexsort((found["block_start_ns"], found["depth"], found["lane_id"]))
    columns = {name: column[order] for name, column in found.items()}
    _look_up_parents(cursor, columns)
    used, positions = np.unique(columns["name_id"], return_inverse=True)
    texts = dict(
        cursor.execute(
            "SELECT name_id, name FROM names WHERE list_contains($ids, name_id)", {"ids": used.tolist()}
        ).fetchall()
    )
    return Timeline(
        start_ns=start_ns,
        end_ns=end_ns,
        pixel_ns=pixel,
        names=[texts[number] for number in used.tolist()],
        lane_id=columns["lane_id"].tolist(),
        depth=columns["depth"].tolist(),
        name=positions.tolist(),
        block_start_ns=columns["block_start_ns"].tolist(),
        block_end_ns=columns["block_end_ns"].tolist(),
        count=columns["count"].tolist(),
        busy_ns=[int(busy) for busy in columns["busy_ns"].tolist()],
        errors=columns["errors"].tolist(),
        open=columns["open"].tolist(),
        span_id=[f"{number:016x}" for number in columns["span_id"].tolist()],
        parent=_parents(columns).tolist(),
    )


def _look_up_parents(cursor: Cursor, columns: dict[str, Any]) -> None:
    """Fill in the parents of long spans, which `long_spans` lacks; outermost ones have none on their lane."""
    rows = np.flatnonzero((columns["busy_ns"] >= LONG_SPAN_NS) & (columns["count"] == 1) & (columns["depth"] > 0))
    if not len(rows):
        return
    shown = {"lane_id": columns["lane_id"][rows], "span_id": columns["span_id"][rows].astype(np.uint64)}
    cursor.register("shown_spans", shown)
    try:
        found = cursor.execute(_LONG_PARENTS, {"long": LONG_SPAN_NS}).fetchall()
    finally:
        cursor.unregister("shown_spans")
    parents = {(lane_id, span_id): parent for lane_id, span_id, parent in found}
    for row in rows.tolist():
        key = (int(columns["lane_id"][row]), int(columns["span_id"][row]))
        columns["parent_id"][row] = parents.get(key, columns["parent_id"][row])


def _parents(columns: dict[str, Any]) -> NDArray[np.int64]:
    """Return the position of each block's parent; -1 if it has none on its lane."""
    ids, parents = columns["span_id"].astype(np.uint64), columns["parent_id"].astype(np.uint64)
    if not len(ids):
        return np.zeros(0, np.int64)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids[order], parents), len(ids) - 1)]
    is_known = (parents > 0) & (ids[place] == parents) & (columns["lane_id"][place] == columns["lane_id"])
    return np.where(is_known & (place != np.arange(len(ids))), place, -1)
