"""From aligned to recorded time: tables are in order of recorded time, so DuckDB can skip most of a file."""

from __future__ import annotations

from typing import Final

from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.queries.base import Cursor, Parameters
from rl_insight.store.tables import LONG_SPAN_NS

_OFFSETS = "SELECT coalesce(min(clock_offset_ns), 0), coalesce(max(clock_offset_ns), 0) FROM processes"
_LONG_FROM = """
    SELECT min(start_ns) FROM long_spans JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE start_ns + clock_offset_ns < $end_ns AND start_ns + clock_offset_ns + duration_ns >= $start_ns
"""

SPAN_FRAGMENTS: Final = {"spans_from": "start_ns >= $spans_from", "spans_until": "start_ns < $spans_until"}
"""Conditions on `span_data` for what `recorded_spans` returns."""


def clock_offsets(cursor: Cursor) -> tuple[int, int]:
    """Return the smallest and the largest clock offset of all processes."""
    ((least, most),) = cursor.execute(_OFFSETS).fetchall()
    return least, most


def recorded_spans(cursor: Cursor, start_ns: int | None, end_ns: int | None) -> Parameters:
    """Return the recorded start times of ended spans that may overlap a window of aligned time."""
    least, most = clock_offsets(cursor)
    found: Parameters = {}
    if start_ns is not None:
        given = {"start_ns": start_ns, "end_ns": LAST_TIME_NS if end_ns is None else end_ns}
        ((long_from,),) = cursor.execute(_LONG_FROM, given).fetchall()
        spans_from = start_ns - most - LONG_SPAN_NS
        found["spans_from"] = spans_from if long_from is None else min(spans_from, long_from)
    if end_ns is not None:
        found["spans_until"] = end_ns - least
    return found
