"""The spans of a report, in columns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_insight.exchange.report.model import SpanColumns
from rl_insight.schema.captured_text import without_texts_in
from rl_insight.store import queries
from rl_insight.store.queries import Cursor, Timeline
from rl_insight.store.tables import PLACE

MAX_SPANS = 150_000
MAX_TEXT = 32_000_000
"""The limit for attributes in characters, equal ones counted once; the rest is left out."""
_PIXELS = 1_024
"""The coarsest resolution of the timeline: about the width of a screen."""
_FINER = 4
"""How much finer the next resolution is."""

_NAMES = "SELECT name_id, name FROM names"
_IN_WINDOW = "start_ns + clock_offset_ns < $end AND start_ns + clock_offset_ns + duration_ns >= $start"
_RUNNING = "start_ns + clock_offset_ns < $end"
_COLUMNS = """
    span_id, parent_id, name_id, start_ns + clock_offset_ns - $origin AS start_ns, duration_ns, segment, status, error,
    step, session_id, attributes, lane_id, depth
"""
_COUNT = f"""
    SELECT (SELECT count(*) FROM span_data {PLACE} WHERE {_IN_WINDOW})
        + (SELECT count(*) FROM open_span_data {PLACE} WHERE {_RUNNING})
"""  # noqa: S608  (constants)
_SPANS = f"""
    SELECT * FROM (
        SELECT {_COLUMNS} FROM span_data {PLACE} WHERE {_IN_WINDOW}
        UNION ALL
        SELECT {_COLUMNS} FROM open_span_data {PLACE} WHERE {_RUNNING}
    ) {{longest}}
"""  # noqa: S608  (constants)
_LONGEST = "ORDER BY CASE WHEN duration_ns < 0 THEN 0 ELSE 1 END, duration_ns DESC LIMIT $limit"


class _TextIndex:
    """Numbers strings in order of first occurrence."""

    def __init__(self, most: int | None = None) -> None:
        self.found: dict[str, int] = {}
        self._room = most
        self.left_out = 0

    def number(self, text: str | None) -> int:
        """Return the number of a string; -1 for None, and for one that exceeds the limit."""
        if not text:
            return -1
        number = self.found.get(text)
        if number is not None:
            return number
        if self._room is not None:
            if len(text) > self._room:
                self.left_out += 1
                return -1
            self._room -= len(text)
        number = self.found[text] = len(self.found)
        return number

    def numbers(self, texts: Iterable[str | None]) -> list[int]:
        """Return the numbers of strings."""
        return [self.number(text) for text in texts]


def span_columns(
    cursor: Cursor,
    start_ns: int,
    end_ns: int,
    origin_ns: int,
    most: int = MAX_SPANS,
    most_text: int = MAX_TEXT,
) -> SpanColumns:
    """Return the spans in a window; if there are too many, the open ones and the longest."""
    window = {"start": start_ns, "end": end_ns}
    ((total,),) = cursor.execute(_COUNT, window).fetchall()
    given = window | {"origin": origin_ns} | ({"limit": most} if total > most else {})
    found = cursor.execute(_SPANS.format(longest=_LONGEST if total > most else ""), given).fetchnumpy()
    order = np.lexsort((found["start_ns"], found["depth"], found["lane_id"]))
    # Columns with NULLs are masked arrays: their lists have None there.
    columns = {name: column[order] for name, column in found.items()}
    used, name = np.unique(columns["name_id"], return_inverse=True)
    names = dict(cursor.execute(_NAMES).fetchall())
    segments, statuses, sessions, texts = _TextIndex(), _TextIndex(), _TextIndex(), _TextIndex(most_text)
    return SpanColumns(
        total=total,
        names=[names[number] for number in used.tolist()],
        name=name.tolist(),
        segment=segments.numbers(columns["segment"].tolist()),
        segments=list(segments.found),
        status=statuses.numbers(columns["status"].tolist()),
        statuses=list(statuses.found),
        session=sessions.numbers(columns["session_id"].tolist()),
        sessions=list(sessions.found),
        # Captured text is only in the transcripts, which are optional.
        text=texts.numbers(None if text == "{}" else without_texts_in(text) for text in columns["attributes"].tolist()),
        texts=list(texts.found),
        texts_left_out=texts.left_out,
        lane_id=columns["lane_id"].tolist(),
        depth=columns["depth"].tolist(),
        start_ns=columns["start_ns"].tolist(),
        duration_ns=columns["duration_ns"].tolist(),
        step=columns["step"].tolist(),
        span_id=[f"{number:016x}" for number in columns["span_id"].tolist()],
        parent=_parents(columns["span_id"], columns["parent_id"]),
        errors={row: error for row, error in enumerate(columns["error"].tolist()) if error},
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


def _parents(span_ids: NDArray[Any], parent_ids: Any) -> list[int]:
    rows = {span_id: row for row, span_id in enumerate(span_ids.tolist())}
    return [-1 if not parent else rows.get(parent, -1) for parent in parent_ids.tolist()]
