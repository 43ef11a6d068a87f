"""The spans of a report, in columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from rl_insight.exchange.report.model import SpanColumns, StringColumn
from rl_insight.schema.captured_text import without_texts_in
from rl_insight.schema.records import UNREADABLE, read_object
from rl_insight.schema.tables import Spans
from rl_insight.store import queries
from rl_insight.store.queries import Cursor, Timeline
from rl_insight.store.queries.base import hex_id
from rl_insight.store.queries.process_ends import LANE_ENDS, register_ends
from rl_insight.store.queries.steps import stepped_spans
from rl_insight.store.tables import PLACE, aligned

MAX_SPANS = 150_000
MAX_TEXT = 32_000_000
"""The limit for attributes in characters, equal ones counted once; the rest is left out."""
_PIXELS = 1_024
"""The coarsest resolution of the timeline: about the width of a screen."""
_FINER = 4
"""How much finer the next resolution is."""

_IN_WINDOW = "start_ns + clock_offset_ns < $end AND start_ns + clock_offset_ns + duration_ns >= $start"
_RUNNING = "start_ns + clock_offset_ns < $end"
_OF_LANE = ("lane_id", "depth")
_COLUMNS = ", ".join((aligned(Spans), *_OF_LANE))
_JOINS = f"{PLACE} JOIN names USING (name_id)"
_TEXTS = [name for name, column in Spans.COLUMNS.items() if column.kind in {"text", "name"} and name != "attributes"]
_NUMBERS = [name for name, column in Spans.COLUMNS.items() if column.kind in {"duration", "step"}]
_COUNT = f"""
    SELECT (SELECT count(*) FROM span_data {PLACE} WHERE {_IN_WINDOW})
        + (SELECT count(*) FROM open_span_data {PLACE} WHERE {_RUNNING})
"""  # noqa: S608  (constants)
_SPANS = f"""
    SELECT * FROM (
        SELECT {_COLUMNS} FROM {{ended}} {_JOINS} WHERE {_IN_WINDOW}
        UNION ALL
        SELECT {_COLUMNS} FROM {{opened}} {_JOINS} WHERE {_RUNNING}
    ) {{longest}}
"""  # noqa: S608  (constants)
_OPEN_UNTIL = f"SELECT DISTINCT lane_id, until_ns FROM open_span_data {LANE_ENDS}"  # noqa: S608  (constants)
_LONGEST = "ORDER BY CASE WHEN duration_ns < 0 THEN 0 ELSE 1 END, duration_ns DESC LIMIT $limit"


def text_column(texts: Iterable[str | None]) -> StringColumn:
    """Return strings as a column."""
    found: dict[str, int] = {}
    rows = [-1 if text is None else found.setdefault(text, len(found)) for text in texts]
    return StringColumn(list(found), rows)


def _within(texts: Iterable[str | None], most: int) -> Iterator[str | None]:
    """Yield strings, and None instead of those beyond a number of characters; equal ones count once."""
    known: set[str] = set()
    for text in texts:
        if text is not None and text not in known:
            if len(text) > most:
                yield None
                continue
            most -= len(text)
            known.add(text)
        yield text


def open_until(cursor: Cursor, now_ns: int) -> dict[int, int]:
    """Return until when the open spans of each lane last."""
    register_ends(cursor, now_ns)
    return dict(cursor.execute(_OPEN_UNTIL).fetchall())


def span_columns(
    cursor: Cursor,
    start_ns: int,
    end_ns: int,
    origin_ns: int,
    now_ns: int,
    most: int = MAX_SPANS,
    most_text: int = MAX_TEXT,
) -> SpanColumns:
    """Return the spans in a window; if there are too many, the open ones and the longest."""
    window = {"start": start_ns, "end": end_ns}
    ((total,),) = cursor.execute(_COUNT, window).fetchall()
    given = window | ({"limit": most} if total > most else {})
    sql = _SPANS.format(longest=_LONGEST if total > most else "", **stepped_spans(cursor))
    found = cursor.execute(sql, given).fetchnumpy()
    order = np.lexsort((found["start_ns"], found["depth"], found["lane_id"]))
    # Columns with NULLs are masked arrays: their lists have None there.
    columns = {name: column[order].tolist() for name, column in found.items()}
    known: dict[str, Any] = {name: text_column(columns[name]) for name in _TEXTS}
    known |= {name: columns[name] for name in (*_NUMBERS, *_OF_LANE)}
    # Captured text is only in the transcripts, which are optional.
    recorded = [without_texts_in(text) or None for text in columns["attributes"]]
    kept = text_column(_within(recorded, most_text))
    traces = zip(columns["trace_high"], columns["trace_low"], strict=True)
    return SpanColumns(
        total=total,
        texts_left_out=sum(text is not None for text in recorded) - sum(row >= 0 for row in kept.rows),
        span_id=[f"{number:016x}" for number in columns["span_id"]],
        trace_id=text_column(f"{high:016x}{low:016x}" for high, low in traces),
        parent_id=text_column(hex_id(number) for number in columns["parent_id"]),
        start_ns=[start - origin_ns for start in columns["start_ns"]],
        until_ns={lane_id: until_ns - origin_ns for lane_id, until_ns in open_until(cursor, now_ns).items()},
        attributes=kept,
        unreadable=[place for place, text in enumerate(kept.values) if read_object(text) == {UNREADABLE: text}],
        **known,
    )


def span_blocks(cursor: Cursor, start_ns: int, end_ns: int, origin_ns: int, now_ns: int) -> list[Timeline]:
    """Return the timeline at several resolutions, the coarsest first, as the server sends it to the page.

    The last one has a block for every span, or as many as a report can hold.
    """
    levels: list[Timeline] = []
    pixels = _PIXELS
    while True:
        found = queries.timeline(
            cursor,
            start_ns=start_ns,
            end_ns=end_ns,
            pixels=min(pixels, end_ns - start_ns),
            now_ns=now_ns,
            max_blocks=MAX_SPANS,
            origin_ns=origin_ns,
            with_steps=True,
        )
        levels.append(found)
        is_coarser = found.pixel_ns > max(1, (end_ns - start_ns) // pixels)
        if is_coarser or found.pixel_ns == 1 or all(count == 1 for count in found.count):
            return levels
        pixels *= _FINER
