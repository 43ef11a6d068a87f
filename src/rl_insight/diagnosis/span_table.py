"""Spans as columns: a large run has tens of thousands per tick, and rules read few of them individually."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from rl_insight.diagnosis.robust import Column
from rl_insight.diagnosis.rows import SpanRow
from rl_insight.schema.names import DURATION_SEGMENT, NESTED_STATE_SEGMENT, PHASE_SEGMENT, STATE_SEGMENT, STATE_SEGMENTS

SEGMENTS: Final = (DURATION_SEGMENT, STATE_SEGMENT, NESTED_STATE_SEGMENT, PHASE_SEGMENT, "other")
"""By code; all of those from adapters are `other`."""
PHASE: Final = SEGMENTS.index(PHASE_SEGMENT)
STATE_INTERVAL: Final = SEGMENTS.index(STATE_SEGMENT)
_IS_STATE: Final = np.array([segment in STATE_SEGMENTS for segment in SEGMENTS])
NO_STEP: Final = -(2**62)


class SpanTable(NamedTuple):
    """States, phases and outermost spans; the columns are the fields of a `SpanRow`, with names as numbers."""

    end_ns: Column
    start_ns: Column
    span_id: Column
    lane_id: Column
    name_id: Column
    segment: Column
    step: Column
    """`NO_STEP` if there is none."""
    failed: Column
    error: Column
    session_id: Column
    tool: Column
    tokens: Column
    """NaN if there are none."""
    depth: Column

    @property
    def size(self) -> int:
        """The number of spans."""
        return int(self.end_ns.size)

    @property
    def is_state(self) -> Column:
        """Whether each is a state of a lane."""
        return np.asarray(_IS_STATE[self.segment])

    @property
    def seconds(self) -> Column:
        """The duration of each."""
        return np.asarray((self.end_ns - self.start_ns) / 1e9)

    def take(self, which: Column | slice) -> SpanTable:
        """Return some of the spans, by a mask, places or a slice."""
        if not isinstance(which, slice) and which.dtype == np.bool_:
            if which.all():
                return self
            which = np.flatnonzero(which)
        size = self.end_ns[which].size
        return SpanTable(*(_repeated(column, size) if _is_repeated(column) else column[which] for column in self))

    def rows(self, names: Sequence[str]) -> list[SpanRow]:
        """Return the spans as rows."""
        columns: list[list[Any]] = [column.tolist() for column in self]
        columns[4] = [names[number] for number in columns[4]]
        columns[5] = [SEGMENTS[code] for code in columns[5]]
        columns[6] = [None if step == NO_STEP else step for step in columns[6]]
        columns[11] = token_counts(columns[11])
        return list(map(SpanRow._make, zip(*columns, strict=True)))


def token_counts(tokens: Sequence[float]) -> list[float | None]:
    """Return token counts, with None for NaN."""
    return [None if count != count else count for count in tokens]  # noqa: PLR0124  # NaN alone differs from itself


def read_spans(found: dict[str, Column]) -> SpanTable:
    """Return the spans of a query with the columns of a `SpanTable`."""
    return SpanTable(*(_plain(found[name]) for name in SpanTable._fields))


def _plain(column: Column) -> Column:
    """Return a column with None for missing values."""
    if isinstance(column, np.ma.MaskedArray):
        is_missing = np.ma.getmaskarray(column)
        if is_missing.all():
            return _repeated(np.array([None]), column.size)
        values = column.data.astype(object)
        values[is_missing] = None
        return values
    is_one = column.size > 1 and _are_same(column[0], column[-1]) and bool(_are_same(column, column[0]).all())
    return _repeated(column, column.size) if is_one else column


def _are_same(one: Any, other: Any) -> Any:
    return (one == other) | ((one != one) & (other != other))  # noqa: PLR0124  # NaN alone differs from itself


def _repeated(column: Column, size: int) -> Column:
    """Return the first value of a column `size` times without copies: most columns have a single value."""
    return np.broadcast_to(column[:1].copy(), size)


def _is_repeated(column: Column) -> bool:
    return column.strides == (0,)


def joined(tables: Sequence[SpanTable]) -> SpanTable:
    """Return tables concatenated."""
    tables = [table for table in tables if table.size] or tables[:1]
    if len(tables) == 1:
        return tables[0]
    return SpanTable(*map(_joined, zip(*tables, strict=True)))


def _joined(columns: Sequence[Column]) -> Column:
    if all(_is_repeated(one) and _are_same(one[0], columns[0][0]) for one in columns):
        return _repeated(columns[0], sum(one.size for one in columns))
    return np.concatenate(columns)


class StateColumns(NamedTuple):
    """The columns of states that durations need."""

    name_id: Column
    lane_id: Column
    start_ns: Column
    end_ns: Column


def state_columns(spans: SpanTable, which: Column) -> StateColumns:
    """Return these columns of some spans."""
    return StateColumns(*(column[which] for column in (spans.name_id, spans.lane_id, spans.start_ns, spans.end_ns)))


class RunningSpans:
    """Spans that have begun and not ended, as of a time that only moves forward."""

    def __init__(self) -> None:
        self._arrived: SpanTable | None = None
        self._place = 0
        self._running: SpanTable | None = None

    def add(self, spans: SpanTable) -> None:
        """Add spans in any order."""
        waiting = spans if self._arrived is None else joined([self._arrived.take(slice(self._place, None)), spans])
        self._arrived = waiting.take(np.argsort(waiting.start_ns, kind="stable"))
        self._place = 0

    def advance(self, until_ns: int) -> SpanTable | None:
        """Return the spans that ended up to a time, ordered by their ends."""
        if self._arrived is None:
            return None
        first, self._place = self._place, int(np.searchsorted(self._arrived.start_ns, until_ns, side="right"))
        begun = self._arrived.take(slice(first, self._place))
        if self._running is not None:
            begun = joined([self._running, begun])
        is_over = begun.end_ns <= until_ns
        self._running = begun.take(~is_over)
        ended = begun.take(is_over)
        return ended.take(np.argsort(ended.end_ns, kind="stable"))

    def open(self, begun_by_ns: int) -> SpanTable | None:
        """Return the spans that were running at the last `advance` and had begun by a given time."""
        return None if self._running is None else self._running.take(self._running.start_ns <= begun_by_ns)
