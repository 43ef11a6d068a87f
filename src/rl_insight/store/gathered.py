"""Batches of many processes, joined column by column before they are converted and written.

A process that records little sends a few rows at a time, and the cost of converting and inserting is mostly per table,
not per row. So the small batches of a commit are joined into one set of columns: raw bytes are concatenated, strings
deduplicated, and positions remapped.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.tables import LAST_TIME_NS, TABLES, TEXT_KINDS, Histograms, Table, row_counts
from rl_insight.store.catalog import Catalog, ProcessState
from rl_insight.store.frame import Column, Frame, ListColumn, NumberColumn, Texts, frame_of
from rl_insight.store.session_batch import SessionBatch
from rl_insight.store.tables import stored_name

LONGEST_NS = 2**57

_DTYPES = {"I": "<u4", "i": "<i4", "q": "<i8", "Q": "<u8", "d": "<f8"}
_UNKNOWN_DEPTH = 1
"""A span whose parent has not been seen: most likely the parent is still running on the same lane."""
_LARGE_ROWS = 1024
"""Half of a DuckDB vector. Batches of this many rows are not joined: that would only copy them."""
_MIX = np.uint64(0x9E3779B97F4A7C15)
"""An odd number that spreads process numbers over 64 bits."""

Numbers = NDArray[Any]
Part = tuple[Batch, ProcessState]


class StoredRows(NamedTuple):
    """Rows in the columns of a store table; strings are still positions in the joined string table."""

    table: type[Table]
    columns: dict[str, Numbers]
    owners: Numbers
    """For each row, the index of its batch."""

    def __len__(self) -> int:
        return len(self.owners)

    def select(self, chosen: Numbers) -> StoredRows:
        """Return some of the rows, by mask or index."""
        columns = {name: values[chosen] for name, values in self.columns.items()}
        return StoredRows(self.table, columns, self.owners[chosen])


class Gathered:
    """The batches that are converted together, in order of arrival."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.batches = [batch for batch, _ in parts]
        self.states = [state for _, state in parts]
        self._counts = {name: row_counts(self.batches, name) for name in TABLES}
        """The rows of each batch in each table."""
        self.strings = self.batches[0].strings
        """Each string once; positions count from 1."""
        self._positions: Numbers | None = None
        self._first = np.zeros(1, np.int64)
        if len(parts) > 1:
            self._join_texts()

    def _join_texts(self) -> None:
        """Number the strings of all batches: `_positions[_first[batch] + position]` is a string's new position."""
        known: dict[str, int] = {}
        positions, first = array("I"), []
        begins: dict[int, int] = {}
        """By list: the batches of a bundle share one."""
        for batch in self.batches:
            begin = begins.setdefault(id(batch.strings), len(positions))
            first.append(begin)
            if begin == len(positions):
                positions.append(0)
                positions.extend([known.setdefault(text, len(known) + 1) for text in batch.strings])
        self.strings = list(known)
        self._positions = np.frombuffer(positions, np.uint32)
        self._first = np.array(first, np.int64)

    def has(self, name: str) -> bool:
        """Return whether any of the batches has rows in a table."""
        return any(self._counts[name])

    def rows(self, name: str) -> tuple[dict[str, Numbers], Numbers]:
        """Return a table of all batches, column by column, and the batch index of each row."""
        tables: list[Table] = [getattr(batch, name) for batch in self.batches]
        kind = TABLES[name]
        owners = np.repeat(np.arange(len(tables)), self._counts[name])
        moved = self._first[owners] if self._positions is not None else None
        columns: dict[str, Numbers] = {}
        for column_name, column in kind.COLUMNS.items():
            raw = [getattr(table, column_name) for table in tables]
            values = np.frombuffer(raw[0] if len(raw) == 1 else b"".join(raw), _DTYPES[column.code])
            if moved is not None and column.kind in TEXT_KINDS:
                values = self._positions[moved + values]  # type: ignore[index]  # set where `moved` is
            columns[column_name] = values
        return columns, owners

    def spans_of_batches(self, rows: StoredRows) -> Iterator[tuple[ProcessState, slice]]:
        """Yield the process and the rows of each batch that has rows."""
        ends = np.searchsorted(rows.owners, np.arange(len(self.batches)), side="right").tolist()
        begin = 0
        for state, end in zip(self.states, ends, strict=True):
            if end > begin:
                yield state, slice(begin, end)
            begin = end

    def stored(self, name: str, catalog: Catalog) -> StoredRows:
        """Return a table of all batches in the columns of the store, without positions in other tables."""
        columns, owners = self.rows(name)
        found: dict[str, Numbers] = {}
        for column_name, column in TABLES[name].COLUMNS.items():
            values = columns[column_name]
            match column.kind:
                case "time":
                    values = values.clip(0, LAST_TIME_NS)
                case "duration":
                    values = values.clip(-1, LONGEST_NS)
                case "name":
                    values = self._names(values, catalog)
                case "lane":
                    values = self._lanes(values, owners, catalog)
                case "index":
                    continue
            found[stored_name(column_name, column)] = values
        rows = StoredRows(TABLES[name], found, owners)
        if name == "spans":
            found["depth"] = self._depths(rows)
        elif name in {"samples", "histograms"}:
            found["series_id"] = self._series(columns["series"], owners, catalog)
        return rows

    def _text(self, position: int) -> str | None:
        return self.strings[position - 1] if position else None

    def _names(self, positions: Numbers, catalog: Catalog) -> Numbers:
        return _looked_up(positions, lambda position: catalog.name_id(self._text(position) or ""))

    def _lanes(self, positions: Numbers, owners: Numbers, catalog: Catalog) -> Numbers:
        states = self.states
        if len(states) == 1:
            return _looked_up(positions, lambda position: catalog.lane_id(states[0], self._text(position)))
        # Lanes are per process, so (process, lane) pairs are looked up.
        width = len(self.strings) + 1
        keys, places = np.unique(owners * width + positions, return_inverse=True)
        pairs = (divmod(key, width) for key in keys.tolist())
        numbers = [catalog.lane_id(states[owner], self._text(position)) for owner, position in pairs]
        lanes: Numbers = np.array(numbers, np.int32)[places]
        return lanes

    def _series(self, positions: Numbers, owners: Numbers, catalog: Catalog) -> Numbers:
        """Return the numbers of series by their positions in their batches."""
        columns, series_owners = self.rows("series")
        texts = ["", *self.strings]
        processes = [state.number for state in self.states]
        known = catalog.series.get
        numbers: list[int] = []
        rows = zip(series_owners.tolist(), *(columns[name].tolist() for name in columns), strict=True)
        for owner, name, kind, documentation, labels in rows:
            key = (processes[owner], texts[name], texts[kind], texts[labels])
            number = known(key)
            if number is None:
                number = catalog.series_id(key[0], key[1], key[2], texts[documentation], key[3])
            numbers.append(number)
        first = np.searchsorted(series_owners, np.arange(len(self.batches)))
        found: Numbers = np.array(numbers, np.int32)[first[owners] + positions]
        return found

    def _depths(self, rows: StoredRows) -> Numbers:
        """Return how many ancestors each span has on its lane, counting those that are here or known to be open."""
        span_ids, parents, lanes = (rows.columns[name] for name in ("span_id", "parent_id", "lane_id"))
        depths = np.zeros(len(span_ids), np.int16)
        children = np.flatnonzero(parents)
        if not len(children):
            return depths
        keys, wanted = span_ids, parents[children]
        if len(self.states) > 1:
            # Ids are unique within a process only. Keys of two processes may collide once in 2**64, which is checked
            # below.
            mixed = np.array([state.number + 1 for state in self.states], np.uint64) * _MIX
            of_rows = mixed[rows.owners]
            keys, wanted = span_ids ^ of_rows, wanted ^ of_rows[children]
        parent_rows = _places(keys, wanted)
        here = (keys[parent_rows] == wanted) & (span_ids[parent_rows] == parents[children])
        for row in children[~here].tolist():
            open_spans = self.states[rows.owners[row]].open_spans
            lane, depth = open_spans.get(int(parents[row]), (int(lanes[row]), _UNKNOWN_DEPTH - 1))
            depths[row] = depth + 1 if lane == lanes[row] else 0
        # Each round settles one more level; nesting is shallow, and a cycle of parents stops at the limit.
        children, parent_rows = children[here], parent_rows[here]
        same_lane = lanes[children] == lanes[parent_rows]
        children, parent_rows = children[same_lane], parent_rows[same_lane]
        for _ in range(64):
            deeper = depths[parent_rows] + np.int16(1)
            if np.array_equal(depths[children], deeper):
                break
            depths[children] = deeper
        return depths


def gather(parts: Sequence[Part]) -> list[Gathered]:
    """Join the small batches of a commit; large ones and sessions from files stay separate."""
    small: list[Part] = []
    large: list[Part] = []
    batches = [batch for batch, _ in parts]
    counts = (row_counts(batches, name) for name in ("spans", "logs", "samples"))
    for part, *rows in zip(parts, *counts, strict=True):
        is_large = sum(rows) >= _LARGE_ROWS
        (large if is_large or isinstance(part[0], SessionBatch) else small).append(part)
    return [Gathered(group) for group in ([small] if small else []) + [[part] for part in large]]


def _looked_up(positions: Numbers, number: Callable[[int], int]) -> Numbers:
    """Map positions to numbers; the function is called once per distinct position."""
    counts = np.bincount(positions)
    lookup = np.zeros(len(counts), np.int32)
    for position in np.flatnonzero(counts).tolist():
        lookup[position] = number(position)
    found: Numbers = lookup[positions]
    return found


def _places(keys: Numbers, wanted: Numbers) -> Numbers:
    """Return the index of each wanted key; any index for a key that is missing."""
    last = len(keys) - 1
    places: Numbers
    if int(keys[-1]) - int(keys[0]) == last and np.all(keys[1:] > keys[:-1]):
        # Consecutive, as in imports: the index is the distance. Keys before the first wrap around to large numbers.
        places = np.minimum(wanted - keys[0], np.uint64(last)).astype(np.intp)
    elif np.all(keys[1:] >= keys[:-1]):
        places = np.minimum(np.searchsorted(keys, wanted), last)
    else:
        order = np.argsort(keys, kind="stable")
        places = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), last)]
    return places


def texts_of(gathered: Gathered) -> Texts:
    """Return the strings that the columns of gathered batches refer to."""
    first = gathered.batches[0]
    return first.texts if isinstance(first, SessionBatch) else Texts(gathered.strings)


def stored_frame(gathered: Gathered, rows: StoredRows, texts: Texts) -> Frame:
    """Return rows as DuckDB reads them; those of histograms with their buckets."""
    frame = row_frame(rows, texts)
    return Frame(frame.columns | _buckets(gathered)) if rows.table is Histograms else frame


def row_frame(rows: StoredRows, texts: Texts) -> Frame:
    """Return rows as DuckDB reads them."""
    found: dict[str, Any] = dict(rows.columns)
    for column_name, column in rows.table.COLUMNS.items():
        name = stored_name(column_name, column)
        match column.kind:
            case "step":
                found[name] = NumberColumn(found[name], found[name] == NO_STEP)
            case "text":
                found[name] = texts.at(found[name]) if column.optional else texts.required(found[name])
    return frame_of(found)


def _buckets(gathered: Gathered) -> dict[str, Column]:
    lengths = gathered.rows("histograms")[0]["buckets"]
    buckets, _ = gathered.rows("buckets")
    return {
        name: ListColumn.of(lengths, NumberColumn(buckets[of_buckets]))
        for name, of_buckets in (("codes", "code"), ("counts", "count"))
    }
