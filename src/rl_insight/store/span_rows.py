"""The spans of one commit: ended spans are appended, open ones are kept in a separate table until they end."""

from __future__ import annotations

from typing import NamedTuple

import duckdb
import numpy as np

from rl_insight.store.catalog import ProcessState
from rl_insight.store.frame import Frame, Texts, frame_of
from rl_insight.store.gathered import Gathered, Numbers, StoredRows, row_frame
from rl_insight.store.inserts import TableInserts, arriving
from rl_insight.store.tables import LONG_SPAN_COLUMNS, LONG_SPAN_NS, SECOND

_INSERT_LONG_SPANS = f"""
    INSERT INTO long_spans BY NAME
    SELECT {", ".join(LONG_SPAN_COLUMNS)} FROM arriving_span_data WHERE duration_ns >= {LONG_SPAN_NS}
"""  # noqa: S608  (constants)
_DELETE_OPEN_SPANS = """
    DELETE FROM open_span_data USING arriving
    WHERE open_span_data.span_id = arriving.span_id AND open_span_data.lane_id IN (
        SELECT lane_id FROM lanes WHERE lanes.process = arriving.process)
"""
_FIND_COMPLETED = """
    SELECT process, span_id FROM span_data JOIN lanes USING (lane_id)
    WHERE start_ns >= $earliest AND span_id IN (SELECT unnest($span_ids))
"""


class _Group(NamedTuple):
    gathered: Gathered
    rows: StoredRows
    texts: Texts
    is_open: Numbers


class _Candidate(NamedTuple):
    """An open span that is neither known as open nor known to have ended in this commit."""

    group: int
    row: int
    state: ProcessState
    span_id: int


class SpanWriter:
    """Collects the spans of one commit, then writes them; starts and ends may arrive in any order."""

    def __init__(self) -> None:
        self._groups: list[_Group] = []

    def add(self, gathered: Gathered, rows: StoredRows, texts: Texts) -> None:
        """Add the spans of gathered batches."""
        self._groups.append(_Group(gathered, rows, texts, rows.columns["duration_ns"] < 0))

    def write(self, connection: duckdb.DuckDBPyConnection, inserts: TableInserts) -> int:
        """Write the added spans, inside the caller's transaction; return how many ended."""
        any_open = any(group.is_open.any() for group in self._groups)
        closed, done = self._closed(any_open=bool(any_open))
        opened = self._newly_open(connection, done) if any_open else []
        ended = self._insert_ended(connection, inserts)
        if closed:
            _close(connection, closed)
        if opened:
            inserts.insert(connection, "open_span_data", opened)
        return ended

    def _closed(self, *, any_open: bool) -> tuple[list[tuple[ProcessState, int]], dict[int, set[int]]]:
        """Return the open spans that have ended and, if any span is open, all ended spans by process."""
        closed: list[tuple[ProcessState, int]] = []
        done: dict[int, set[int]] = {}
        for gathered, rows, _, is_open in self._groups:
            if not any_open and not any(state.open_spans for state in gathered.states):
                continue
            span_ids = rows.columns["span_id"]
            for state, part in gathered.spans_of_batches(rows):
                if not any_open and not state.open_spans:
                    continue
                ids = set(span_ids[part][~is_open[part]].tolist())
                done.setdefault(state.number, set()).update(ids)
                closed += [(state, span_id) for span_id in ids & state.open_spans.keys()]
        return closed, done

    def _insert_ended(self, connection: duckdb.DuckDBPyConnection, inserts: TableInserts) -> int:
        frames: list[Frame] = []
        longest = 0
        for _, rows, texts, is_open in self._groups:
            ended = rows.select(~is_open) if is_open.any() else rows
            if len(ended):
                longest = max(longest, int(ended.columns["duration_ns"].max()))
                frames.append(row_frame(ended, texts))
        if not frames:
            return 0
        inserts.insert(connection, "span_data", frames, _INSERT_LONG_SPANS if longest >= LONG_SPAN_NS else None)
        return sum(map(len, frames))

    def _newly_open(self, connection: duckdb.DuckDBPyConnection, done: dict[int, set[int]]) -> list[Frame]:
        """Return the open spans that are neither known as open nor known to have ended."""
        candidates = self._candidates(done)
        if not candidates:
            return []
        starts = [int(self._groups[one.group].rows.columns["start_ns"][one.row]) for one in candidates]
        given = {"earliest": min(starts) - SECOND, "span_ids": [one.span_id for one in candidates]}
        completed = set(connection.execute(_FIND_COMPLETED, given).fetchall())
        kept: dict[int, list[int]] = {}
        for one in candidates:
            if (one.state.number, one.span_id) in completed:
                del one.state.open_spans[one.span_id]
                continue
            columns = self._groups[one.group].rows.columns
            one.state.open_spans[one.span_id] = (int(columns["lane_id"][one.row]), int(columns["depth"][one.row]))
            kept.setdefault(one.group, []).append(one.row)
        return [
            row_frame(self._groups[number].rows.select(np.array(places)), self._groups[number].texts)
            for number, places in kept.items()
        ]

    def _candidates(self, done: dict[int, set[int]]) -> list[_Candidate]:
        found: list[_Candidate] = []
        for number, (gathered, rows, _, is_open) in enumerate(self._groups):
            places = np.flatnonzero(is_open)
            span_ids, owners = rows.columns["span_id"][places].tolist(), rows.owners[places].tolist()
            for row, span_id, owner in zip(places.tolist(), span_ids, owners, strict=True):
                state = gathered.states[owner]
                if span_id in state.open_spans or span_id in done.get(state.number, ()):
                    continue
                state.open_spans[span_id] = (0, 0)
                found.append(_Candidate(number, row, state, span_id))
        return found


def _close(connection: duckdb.DuckDBPyConnection, closed: list[tuple[ProcessState, int]]) -> None:
    columns = {
        "process": np.array([state.number for state, _ in closed], np.int32),
        "span_id": np.array([span_id for _, span_id in closed], np.uint64),
    }
    with arriving(connection, [frame_of(columns)]):
        connection.execute(_DELETE_OPEN_SPANS)
    for state, span_id in closed:
        state.open_spans.pop(span_id, None)
