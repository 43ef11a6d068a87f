"""A run as batches again: the way out that is the mirror of the way in."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from rl_insight.exchange.exporting import rows
from rl_insight.exchange.exporting.rows import ExportedProcess, ExportedSeries, Selection
from rl_insight.schema import Batch, BatchBuilder, Loss, Process
from rl_insight.schema.signs_of_life import LAST_SEEN_EVENT, LastSeen
from rl_insight.sessions.model import REPORTED, Session
from rl_insight.store import queries
from rl_insight.store.gathered import LAST_TIME_NS
from rl_insight.store.queries import Cursor

_BATCH_ROWS = 5_000
_PAGE = 10_000


def read_back(cursor: Cursor, selection: Selection | None = None) -> Iterator[Batch]:
    """Yield everything in a run, or a part of it, as batches with aligned times.

    Findings are left out: they are made from the rest.
    """
    chosen = selection or Selection()
    writer = _Batches(cursor)
    yield from writer.rows(chosen)
    yield from writer.sessions(chosen)
    yield from writer.samples(chosen)
    yield from writer.histograms(chosen)
    yield from writer.losses()
    if chosen == Selection():
        yield from writer.signs_of_life()


class _Batches:
    """Fills builders and hands them out when they are full, or when the process changes."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._processes = {row.number: _process(row) for row in rows.processes(cursor)}
        self._series = rows.series(cursor)
        self._sequences: dict[int, int] = {}
        self._builder = BatchBuilder()
        self._owner: int | None = None
        self._known_series: dict[int, int] = {}

    def _turn(self, process: int) -> Iterator[Batch]:
        """Get ready for a row of a process; yields the batch before it, if that is complete."""
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
        """Yield spans, events and log lines: what is stored as it was recorded."""
        for table, read in (("spans", rows.spans), ("events", rows.events), ("logs", rows.logs)):
            for process, _, *values in read(self._cursor, selection):
                yield from self._turn(process)
                self._builder.add_row(table, values)
            yield from self._finish()

    def sessions(self, selection: Selection) -> Iterator[Batch]:
        if selection.lane is not None:
            return
        numbers = {process.process_id: number for number, process in self._processes.items()}
        for session in sessions_in(self._cursor, selection):
            owner = numbers.get(session.process_id or "")
            if owner is None:
                continue
            yield from self._turn(owner)
            self._builder.add_session(
                session_id=session.session_id,
                task_id=session.task_id,
                status=session.status,
                time_ns=_latest_ns(session),
                record=msgspec.json.encode(_snapshot(session)).decode(),
            )
        yield from self._finish()

    def samples(self, selection: Selection) -> Iterator[Batch]:
        for row in rows.samples(self._cursor, selection):
            yield from self._turn(row.process)
            self._builder.add_sample(self._position(row.series_id), time_ns=row.time_ns, value=row.value, step=row.step)
        yield from self._finish()

    def histograms(self, selection: Selection) -> Iterator[Batch]:
        for row in rows.histograms(self._cursor, selection):
            yield from self._turn(row.process)
            self._builder.add_histogram(
                self._position(row.series_id),
                time_ns=row.time_ns,
                count=row.values,
                total=row.sum,
                minimum=row.min,
                maximum=row.max,
                buckets=dict(zip(row.codes, row.counts, strict=True)),
                step=row.step,
            )
        yield from self._finish()

    def losses(self) -> Iterator[Batch]:
        """Yield the losses, so that readers of an export know about them."""
        by_process: dict[int, list[Loss]] = {}
        for process, kind, reason, count in rows.losses(self._cursor):
            by_process.setdefault(process, []).append(Loss(kind, reason, count))
        for process, found in by_process.items():
            yield self._build(process, found)

    def signs_of_life(self) -> Iterator[Batch]:
        """Yield when each process was last heard, so that an import can be diagnosed as the run itself."""
        for process, last_seen_ns, final in rows.signs_of_life(self._cursor):
            yield from self._turn(process)
            seen = LastSeen(final=final, heartbeat_s=self._processes[process].heartbeat_s)
            told = msgspec.json.encode(seen).decode()
            self._builder.add_event(time_ns=last_seen_ns, name=LAST_SEEN_EVENT, attributes=told)
        yield from self._finish()

    def _position(self, series_id: int) -> int:
        position = self._known_series.get(series_id)
        if position is None:
            one: ExportedSeries = self._series[series_id]
            labels = msgspec.json.encode(one.labels).decode()
            position = self._builder.add_series(one.name, one.kind, one.documentation, labels)
            self._known_series[series_id] = position
        return position


def sessions_in(cursor: Cursor, selection: Selection) -> Iterator[Session]:
    """Yield the sessions of a selection; their time is that of their submission."""
    offset = 0
    while True:
        page, _ = queries.sessions(
            cursor,
            session_id=selection.session_id,
            first_step=selection.step,
            last_step=selection.step,
            order="session_id",
            descending=False,
            limit=_PAGE,
            offset=offset,
        )
        for session in page:
            if _overlaps(session, selection):
                yield session
        offset += len(page)
        if len(page) < _PAGE:
            return


def _overlaps(session: Session, selection: Selection) -> bool:
    begin, end = session.submit_ts, session.finalized_ts or session.wait_return_ts
    if selection.start_ns is not None and end is not None and end * 1e9 < selection.start_ns:
        return False
    return selection.end_ns is None or begin is None or begin * 1e9 < selection.end_ns


def _latest_ns(session: Session) -> int:
    seconds = session.finalized_ts or session.wait_return_ts or session.submit_ts or 0.0
    return max(0, min(round(1e9 * seconds), LAST_TIME_NS))


def _snapshot(session: Session) -> dict[str, object]:
    """Return a session's row as its owner would tell it; what follows from the phases is left out."""
    told = ((name, getattr(session, name)) for name in REPORTED if name not in {"rank", "role"})
    return {"session_id": session.session_id} | {name: value for name, value in told if value not in (None, {})}


def _process(row: ExportedProcess) -> Process:
    return Process(**{name: getattr(row, name) for name in Process.__struct_fields__})
