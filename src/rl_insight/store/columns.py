"""From the columns of batches to Arrow tables in the shape of the store's tables.

Numbers go from the batch's raw bytes through `numpy.frombuffer` without being touched row by row; text keeps
the batch's dictionary. Times are clipped to a range in which sums of them cannot overflow.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.tables import Table
from rl_insight.store.catalog import Catalog, ProcessState
from rl_insight.store.tables import stored_name

LAST_TIME_NS = 2**62
LONGEST_NS = 2**57

_DTYPES = {"I": "<u4", "i": "<i4", "q": "<i8", "Q": "<u8", "d": "<f8"}
_UNKNOWN_DEPTH = 1
"""A span whose parent has not been seen: most likely the parent is still running on the same lane."""


def numbers(table: Table, name: str) -> NDArray[Any]:
    """Return a column of a batch as a NumPy array, without copying it."""
    return np.frombuffer(getattr(table, name), dtype=_DTYPES[table.TYPES[name]])


class Texts:
    """The texts of one batch, for columns of positions."""

    def __init__(self, strings: list[str]) -> None:
        self._strings = strings
        # Position 0 means that a text is absent.
        self._dictionary = pa.array(["", *strings], pa.string())

    def text(self, position: int) -> str | None:
        """Return the text at a position; None where it is absent."""
        return self._strings[position - 1] if position else None

    def between(self, first: int, end: int) -> pa.Array:
        """Return the texts from one position up to another, without copying them."""
        return self._dictionary[first:end]

    def at(self, positions: NDArray[Any]) -> pa.Array:
        """Return the texts at some positions; absent ones are null."""
        return self._at(pa.array(positions, mask=positions == 0))

    def required(self, positions: NDArray[Any]) -> pa.Array:
        """Return the texts at some positions; absent ones are empty."""
        return self._at(pa.array(positions))

    def _at(self, positions: pa.Array) -> pa.Array:
        return pa.DictionaryArray.from_arrays(positions, self._dictionary)

    def numbered(self, positions: NDArray[Any], number: Any) -> NDArray[np.int32]:
        """Return the numbers that `number(text or None)` gives for a column of positions; asked once a text."""
        lookup = np.zeros(len(self._strings) + 1, np.int32)
        for position in np.flatnonzero(np.bincount(positions)).tolist():
            lookup[position] = number(self.text(position))
        numbers_: NDArray[np.int32] = lookup[positions]
        return numbers_


def _stored(table: Table, texts: Texts, catalog: Catalog, state: ProcessState) -> dict[str, Any]:
    """Return the columns of a table as the store keeps them; positions in other tables are left out."""
    found: dict[str, Any] = {}
    for name, column in table.COLUMNS.items():
        values = numbers(table, name)
        match column.kind:
            case "time":
                values = np.clip(values, 0, LAST_TIME_NS)
            case "duration":
                values = np.clip(values, -1, LONGEST_NS)
            case "step":
                values = pa.array(values, mask=values == NO_STEP)
            case "text":
                values = texts.at(values) if column.optional else texts.required(values)
            case "name":
                values = texts.numbered(values, lambda text: catalog.name_id(text or ""))
            case "lane":
                values = texts.numbered(values, lambda text: catalog.lane_id(state, text))
            case "number" if column.code == "d":
                # From a NumPy array, Arrow keeps NaN as a value: it does not become null.
                values = pa.array(values, from_pandas=False)
            case "index":
                continue
        found[stored_name(name, column)] = values
    return found


def span_table(batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState) -> pa.Table:
    """Return a batch's spans, open ones too, in the columns of `span_data`."""
    columns = _stored(batch.spans, texts, catalog, state)
    columns["depth"] = _depths(columns["span_id"], columns["parent_id"], columns["lane_id"], state)
    return pa.table(columns)


def event_table(batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState) -> pa.Table:
    """Return a batch's events in the columns of `event_data`."""
    return pa.table(_stored(batch.events, texts, catalog, state))


def log_table(batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState) -> pa.Table:
    """Return a batch's log lines in the columns of `log_data`."""
    return pa.table(_stored(batch.logs, texts, catalog, state))


def _depths(
    span_ids: NDArray[np.uint64], parents: NDArray[np.uint64], lanes: NDArray[np.int32], state: ProcessState
) -> NDArray[np.int16]:
    """Return how many ancestors each span has on its own lane, as far as they are in the batch or known to be open."""
    depths = np.zeros(len(span_ids), np.int16)
    rows = np.flatnonzero(parents)
    if not len(rows):
        return depths
    if int(span_ids[-1]) - int(span_ids[0]) == len(span_ids) - 1 and np.all(span_ids[1:] > span_ids[:-1]):
        # One after the other, as imported ones are: the place is the distance. What is before the first is far behind.
        parent_rows = np.minimum(parents[rows] - span_ids[0], len(span_ids) - 1)
    elif np.all(span_ids[1:] >= span_ids[:-1]):
        parent_rows = np.minimum(np.searchsorted(span_ids, parents[rows]), len(span_ids) - 1)
    else:
        order = np.argsort(span_ids, kind="stable")
        places = np.searchsorted(span_ids, parents[rows], sorter=order)
        parent_rows = order[np.minimum(places, len(order) - 1)]
    here = span_ids[parent_rows] == parents[rows]
    for row in rows[~here].tolist():
        lane, depth = state.open_spans.get(int(parents[row]), (int(lanes[row]), _UNKNOWN_DEPTH - 1))
        depths[row] = depth + 1 if lane == lanes[row] else 0
    # Each round settles one level more; nesting is shallow, and a ring of parents ends at the limit.
    rows, parent_rows = rows[here], parent_rows[here]
    same_lane = lanes[rows] == lanes[parent_rows]
    rows, parent_rows = rows[same_lane], parent_rows[same_lane]
    for _ in range(64):
        deeper = depths[parent_rows] + np.int16(1)
        if np.array_equal(depths[rows], deeper):
            break
        depths[rows] = deeper
    return depths


def series_numbers(batch: Batch, catalog: Catalog, state: ProcessState) -> NDArray[np.int32]:
    """Return the numbers of a batch's series, by their position in it."""
    text = batch.text
    found = [
        catalog.series_id(state.number, *(text(position) or "" for position in row)) for row in batch.series.rows()
    ]
    return np.array(found, np.int32)


def sample_table(
    batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState, series: NDArray[np.int32]
) -> pa.Table:
    """Return a batch's samples in the columns of `sample_data`."""
    columns = _stored(batch.samples, texts, catalog, state)
    return pa.table(columns | {"series_id": series[numbers(batch.samples, "series")]})


def histogram_table(
    batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState, series: NDArray[np.int32]
) -> pa.Table:
    """Return a batch's histograms in the columns of `histogram_data`."""
    columns = _stored(batch.histograms, texts, catalog, state)
    offsets = np.zeros(len(batch.histograms) + 1, np.int32)
    np.cumsum(numbers(batch.histograms, "buckets"), out=offsets[1:])
    for name, of_buckets in (("codes", "code"), ("counts", "count")):
        values = pa.array(numbers(batch.buckets, of_buckets))
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets), values)
    return pa.table(columns | {"series_id": series[numbers(batch.histograms, "series")]})
