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
from rl_insight.schema.batch import Table
from rl_insight.store.catalog import Catalog, ProcessState

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

    def column(self, table: Table, name: str) -> pa.Array:
        """Return a text column; absent texts are null."""
        return self.at(numbers(table, name))

    def at(self, positions: NDArray[Any]) -> pa.Array:
        """Return the texts at some positions; absent ones are null."""
        return self._at(pa.array(positions, mask=positions == 0))

    def required(self, table: Table, name: str) -> pa.Array:
        """Return a text column in which absent texts are empty."""
        return self._at(pa.array(numbers(table, name)))

    def _at(self, positions: pa.Array) -> pa.Array:
        return pa.DictionaryArray.from_arrays(positions, self._dictionary)

    def numbered(self, positions: NDArray[Any], number: Any) -> NDArray[np.int32]:
        """Return the numbers that `number(text or None)` gives for a column of positions; asked once a text."""
        lookup = np.zeros(len(self._strings) + 1, np.int32)
        for position in np.flatnonzero(np.bincount(positions)).tolist():
            lookup[position] = number(self.text(position))
        numbers_: NDArray[np.int32] = lookup[positions]
        return numbers_


def _steps(table: Table) -> pa.Array:
    steps = numbers(table, "step")
    return pa.array(steps, mask=steps == NO_STEP)


def _times(table: Table, name: str) -> NDArray[np.int64]:
    times: NDArray[np.int64] = np.clip(numbers(table, name), 0, LAST_TIME_NS)
    return times


def _lanes(table: Table, texts: Texts, catalog: Catalog, state: ProcessState) -> NDArray[np.int32]:
    return texts.numbered(numbers(table, "lane"), lambda lane: catalog.lane_id(state.number, lane))


def span_table(batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState) -> pa.Table:
    """Return a batch's spans, open ones too, in the columns of `span_data`."""
    spans = batch.spans
    lanes = _lanes(spans, texts, catalog, state)
    names = texts.numbered(numbers(spans, "name"), lambda name: catalog.name_id(name or ""))
    return pa.table(
        {
            "span_id": numbers(spans, "span_id"),
            "trace_high": numbers(spans, "trace_high"),
            "trace_low": numbers(spans, "trace_low"),
            "parent_id": numbers(spans, "parent_id"),
            "lane_id": lanes,
            "name_id": names,
            "depth": _depths(numbers(spans, "span_id"), numbers(spans, "parent_id"), lanes, state),
            "start_ns": _times(spans, "start_ns"),
            "duration_ns": np.clip(numbers(spans, "duration_ns"), -1, LONGEST_NS),
            "segment": texts.required(spans, "segment"),
            "status": texts.required(spans, "status"),
            "error": texts.column(spans, "error"),
            "step": _steps(spans),
            "session_id": texts.column(spans, "session_id"),
            "attributes": texts.column(spans, "attributes"),
        }
    )


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


def _place(table: Table, texts: Texts, catalog: Catalog, state: ProcessState) -> dict[str, Any]:
    """Return the columns that events and logs share."""
    return {
        "span_id": numbers(table, "span_id"),
        "trace_high": numbers(table, "trace_high"),
        "trace_low": numbers(table, "trace_low"),
        "lane_id": _lanes(table, texts, catalog, state),
        "step": _steps(table),
        "session_id": texts.column(table, "session_id"),
        "attributes": texts.column(table, "attributes"),
    }


def event_table(batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState) -> pa.Table:
    """Return a batch's events in the columns of `event_data`."""
    events = batch.events
    columns = {"time_ns": _times(events, "time_ns"), "name": texts.required(events, "name")}
    return pa.table(columns | _place(events, texts, catalog, state))


def log_table(batch: Batch, texts: Texts, catalog: Catalog, state: ProcessState) -> pa.Table:
    """Return a batch's log lines in the columns of `log_data`."""
    logs = batch.logs
    columns = {
        "time_ns": _times(logs, "time_ns"),
        "level": numbers(logs, "level"),
        "logger": texts.column(logs, "logger"),
        "message": texts.required(logs, "message"),
    }
    return pa.table(columns | _place(logs, texts, catalog, state))


def series_numbers(batch: Batch, catalog: Catalog, state: ProcessState) -> NDArray[np.int32]:
    """Return the numbers of a batch's series, by their position in it."""
    series, text = batch.series, batch.text
    columns = (series.column(name).tolist() for name in series.TYPES)
    found = [
        catalog.series_id(state.number, text(name) or "", text(kind) or "", text(help_) or "", text(labels) or "")
        for name, kind, help_, labels in zip(*columns, strict=True)
    ]
    return np.array(found, np.int32)


def sample_table(batch: Batch, series: NDArray[np.int32]) -> pa.Table:
    """Return a batch's samples in the columns of `sample_data`."""
    samples = batch.samples
    return pa.table(
        {
            "series_id": series[numbers(samples, "series")],
            "time_ns": _times(samples, "time_ns"),
            # From a NumPy array, Arrow keeps NaN as a value: it does not become null.
            "value": pa.array(numbers(samples, "value"), from_pandas=False),
            "step": _steps(samples),
        }
    )


def histogram_table(batch: Batch, series: NDArray[np.int32]) -> pa.Table:
    """Return a batch's histograms in the columns of `histogram_data`."""
    histograms = batch.histograms
    offsets = np.zeros(len(histograms) + 1, np.int32)
    np.cumsum(numbers(histograms, "buckets"), out=offsets[1:])
    codes, counts = pa.array(numbers(batch.buckets, "code")), pa.array(numbers(batch.buckets, "count"))
    return pa.table(
        {
            "series_id": series[numbers(histograms, "series")],
            "time_ns": _times(histograms, "time_ns"),
            "step": _steps(histograms),
            "count": numbers(histograms, "count"),
            "sum": pa.array(numbers(histograms, "sum"), from_pandas=False),
            "min": pa.array(numbers(histograms, "min"), from_pandas=False),
            "max": pa.array(numbers(histograms, "max"), from_pandas=False),
            "codes": pa.ListArray.from_arrays(pa.array(offsets), codes),
            "counts": pa.ListArray.from_arrays(pa.array(offsets), counts),
        }
    )
