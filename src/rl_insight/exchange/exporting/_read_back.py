"""Reads a run back as batches: the inverse of storing it."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rl_insight.exchange.exporting import rows
from rl_insight.exchange.exporting.rows import SPANS_BY_PROCESS, Selection
from rl_insight.schema import Batch, BatchBuilder, Loss
from rl_insight.schema.signs_of_life import LAST_SEEN_EVENT, LAST_SEEN_LANE
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.sessions.model import REPORTED, StoredSession
from rl_insight.store.queries import Cursor

_BATCH_ROWS = 5_000


def read_back(cursor: Cursor, selection: Selection | None = None) -> Iterator[Batch]:
    """Yield everything in a run, or a part of it, as batches with aligned times.

    Findings are left out: they are derived from the rest.
    """
    chosen = selection or Selection()
    writer = _Batches(cursor)
    yield from writer.rows(chosen)
    yield from writer.sessions(chosen)
    yield from writer.samples(chosen)
    yield from writer.histograms(chosen)
    yield from writer.losses()
    if chosen == Selection():
        yield from writer.last_seen()


class _Batches:
    """Fills builders, and turns each into a batch when it is full or the process changes."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._processes = rows.processes(cursor)
        self._series = rows.series(cursor)
        self._sequences: dict[int, int] = {}
        self._builder = BatchBuilder()
        self._owner: int | None = None
        self._known_series: dict[int, int] = {}

    def _switch_to(self, process: int) -> Iterator[Batch]:
        """Prepare for a row of a process; yield the previous batch if it is complete."""
        if self._owner != process or len(self._builder) >= _BATCH_ROWS:
            yield from self._finish()
            self._owner = process

    def _finish(self) -> Iterator[Batch]:
        if self._owner is not None and len(self._builder):
            yield self._build(self._owner)
        self._builder = BatchBuilder()
        self._known_series = {}
        self._owner = None

    def _build(self, process: int, losses: list[Loss] | None = None) -> Batch:
        sequence = self._sequences[process] = self._sequences.get(process, 0) + 1
        return self._builder.build(self._processes[process], sequence=sequence, sent_ns=0, losses=losses or [])

    def rows(self, selection: Selection) -> Iterator[Batch]:
        """Yield spans, events and log lines, which are stored as they were recorded."""
        for table, *order in (("spans", SPANS_BY_PROCESS), ("events",), ("logs",)):
            for process, _, *values in rows.recorded(self._cursor, table, selection, *order):
                yield from self._switch_to(process)
                self._builder.add_row(table, values)
            yield from self._finish()

    def sessions(self, selection: Selection) -> Iterator[Batch]:
        numbers = {process.process_id: number for number, process in self._processes.items()}
        for session in rows.sessions(self._cursor, selection):
            owner = numbers.get(session.process_id or "")
            if owner is None:
                continue
            yield from self._switch_to(owner)
            self._builder.add_session(
                session_id=session.session_id,
                task_id=session.task_id,
                status=session.status,
                time_ns=_latest_ns(session),
                record=msgspec.json.encode(_snapshot(session)).decode(),
            )
        yield from self._finish()

    def samples(self, selection: Selection) -> Iterator[Batch]:
        for row in rows.recorded(self._cursor, "samples", selection):
            yield from self._switch_to(row.process)
            self._builder.add_sample(self._position(row.series_id), time_ns=row.time_ns, value=row.value, step=row.step)
        yield from self._finish()

    def histograms(self, selection: Selection) -> Iterator[Batch]:
        for row in rows.recorded(self._cursor, "histograms", selection):
            yield from self._switch_to(row.process)
            self._builder.add_histogram(
                self._position(row.series_id),
                time_ns=row.time_ns,
                count=row.count,
                total=row.sum,
                minimum=row.min,
                maximum=row.max,
                buckets=dict(zip(row.codes, row.counts, strict=True)),
                step=row.step,
            )
        yield from self._finish()

    def losses(self) -> Iterator[Batch]:
        """Yield the losses, so that an export shows them."""
        by_process: dict[int, list[Loss]] = {}
        for process, kind, reason, count in rows.losses(self._cursor):
            by_process.setdefault(process, []).append(Loss(kind, reason, count))
        for process, found in by_process.items():
            yield self._build(process, found)

    def last_seen(self) -> Iterator[Batch]:
        """Yield when each process was last seen, so that an import is diagnosed like the run itself."""
        for process, time_ns, seen in rows.last_seen(self._cursor):
            yield from self._switch_to(process)
            text = msgspec.json.encode(seen).decode()
            self._builder.add_event(time_ns=time_ns, name=LAST_SEEN_EVENT, lane=LAST_SEEN_LANE, attributes=text)
        yield from self._finish()

    def _position(self, series_id: int) -> int:
        position = self._known_series.get(series_id)
        if position is None:
            position = self._known_series[series_id] = self._builder.add_series(*self._series[series_id])
        return position


def _latest_ns(session: StoredSession) -> int:
    seconds = session.finalized_ts or session.wait_return_ts or session.submit_ts or 0.0
    return max(0, min(round(1e9 * seconds), LAST_TIME_NS))


def _snapshot(session: StoredSession) -> dict[str, object]:
    """Return the fields that the owner of a session reports, without those derived from phases."""
    reported = ((name, getattr(session, name)) for name in REPORTED if name not in {"rank", "role"})
    return {"session_id": session.session_id} | {name: value for name, value in reported if value not in (None, {})}
