"""The processes, lanes, names and series of a run file by number, in memory while the file is open.

The only writer of a file looks everything up here, so the tables need no indexes and no lookup joins. New entries are
written in the same transaction as the rows that refer to them. When a transaction fails, the catalog is reloaded.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import msgspec

from rl_insight.intake import ClockOffset, Intake, Ledger, Liveness, silence_ns
from rl_insight.schema import Batch, Process
from rl_insight.schema.json_values import json_object
from rl_insight.schema.names import original_of
from rl_insight.store.inserts import TableInserts, arriving, frame_of_rows
from rl_insight.store.tables import TABLES

_MAX_TAKEN_ROWS = 50_000
"""Rows that the ledger covers are obsolete; this many, which take 50 ms to read, trigger their deletion."""
_LANE_OF_RANK = re.compile(r"(rank|replica)_(\d{1,9})")
_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_ROLES = {"rank": "worker", "replica": "rollout"}


@dataclass(slots=True)
class ProcessState:
    """One process in a run file."""

    number: int
    intake: Intake
    role: str
    rank: int | None
    project: str
    experiment_name: str
    open_spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Span id to its lane and depth."""


class Catalog:
    """The numbers in use, and the changes to write with the next commit."""

    def __init__(self) -> None:
        self.inserts = TableInserts()
        self.processes: dict[str, ProcessState] = {}
        self.lanes: dict[tuple[int, str | None], int] = {}
        self.names: dict[str, int] = {}
        self.series: dict[tuple[int, str, str, str], int] = {}
        self.losses: dict[tuple[int, str, str], int] = {}
        self._new_processes: list[ProcessState] = []
        self._changed_processes: dict[int, ProcessState] = {}
        """Processes whose rows in `processes` and `ledger` are stale."""
        self._taken: list[tuple[int, int, int, int]] = []
        """The batches in the transaction."""
        self._taken_rows = 0
        """How many rows `taken` has."""
        self._is_urgent = False
        """True when more has changed than `taken` records."""
        self._is_settled = False
        """True when the transaction updates all stale rows."""
        self._new_rows: dict[str, list[tuple[object, ...]]] = {}
        """By table."""
        self._changed_losses: dict[tuple[int, str, str], int] = {}

    @classmethod
    def load(cls, connection: duckdb.DuckDBPyConnection) -> Catalog:
        """Read the catalog of a file."""
        catalog = cls()
        for row in connection.execute(_LOAD_PROCESSES).fetchall():
            state = _read_process(row)
            catalog.processes[state.intake.process.process_id] = state
        for lane_id, process, lane in connection.execute("SELECT lane_id, process, lane FROM lanes").fetchall():
            catalog.lanes[process, lane] = lane_id
        catalog.names = {name: i for i, name in connection.execute("SELECT name_id, name FROM names").fetchall()}
        rows = connection.execute("SELECT series_id, process, name, kind, labels FROM series").fetchall()
        catalog.series = {(process, name, kind, labels): i for i, process, name, kind, labels in rows}
        rows = connection.execute("SELECT process, kind, reason, count FROM losses").fetchall()
        catalog.losses = {(process, kind, reason): count for process, kind, reason, count in rows}
        states = {state.number: state for state in catalog.processes.values()}
        for process, sequence, received_ns, sent_ns in connection.execute(_LOAD_TAKEN).fetchall():
            catalog._taken_rows += 1
            if states[process].intake.take_again(sequence, received_ns=received_ns, sent_ns=sent_ns):
                catalog._changed_processes[process] = states[process]
        for process, span_id, lane_id, depth in connection.execute(_LOAD_OPEN).fetchall():
            states[process].open_spans[span_id] = (lane_id, depth)
        return catalog

    def process_of(self, batch: Batch, now_ns: int) -> ProcessState:
        """Return the state of the process that sent a batch, creating it for a new process."""
        state = self.processes.get(batch.process.process_id)
        if state is None:
            process = batch.process
            given = process.role, process.rank, process.project, process.experiment_name
            state = ProcessState(len(self.processes), Intake(process, now_ns), *given)
            self.processes[batch.process.process_id] = state
            self._new_processes.append(state)
        return state

    def has_original(self, process_id: str) -> bool:
        """Return whether the run already has the records of an imported process, sent by the process itself."""
        original = original_of(process_id)
        if original is not None:
            return original in self.processes
        state = self.processes.get(process_id)
        return state is not None and state.intake.clock.delay_ns is not None

    def take(self, batch: Batch, state: ProcessState, now_ns: int) -> bool:
        """Take a batch; return False for a duplicate."""
        intake = state.intake
        was_seen_ns, before = intake.last_seen_ns, intake.liveness(now_ns)
        earlier = intake.process.heartbeat_s, intake.clock.offset_ns
        if not intake.take(batch, now_ns):
            return False
        live = batch.sent_ns > 0
        self._changed_processes[state.number] = state
        self._taken.append((state.number, batch.sequence, now_ns, batch.sent_ns))
        if batch.final or not live or (intake.process.heartbeat_s, intake.clock.offset_ns) != earlier:
            self._is_urgent = True
        reported_names = batch.process.project, batch.process.experiment_name
        if any(reported_names) and not (state.project or state.experiment_name):
            # Scraped targets report them with their first metric.
            state.project, state.experiment_name = reported_names
            self._is_urgent = True
        if live:
            self._note_liveness(state, was_seen_ns, before, now_ns)
        for loss in batch.losses:
            if self._note_loss((state.number, loss.kind, loss.reason), loss.count) and live:
                self._add("loss_history", (state.number, now_ns, loss.kind, loss.reason, loss.count))
        return True

    def _add(self, table: str, row: tuple[object, ...]) -> None:
        self._new_rows.setdefault(table, []).append(row)

    def _note_liveness(self, state: ProcessState, was_seen_ns: int, before: Liveness, now_ns: int) -> None:
        """Record how the liveness of a process changed; silence is recorded once the process reports again."""
        intake = state.intake
        if not was_seen_ns:
            self._add("process_states", (state.number, now_ns, "live"))
        elif before == "silent":
            self._add("process_states", (state.number, was_seen_ns + silence_ns(intake.process.heartbeat_s), "silent"))
            self._add("process_states", (state.number, now_ns, "live"))
        if intake.final and before != "ended":
            self._add("process_states", (state.number, now_ns, "ended"))

    def _note_loss(self, key: tuple[int, str, str], count: int) -> bool:
        """Record a total; return False if nothing was lost since the last one."""
        known = self.losses.get(key)
        if known is not None and known >= count:
            return False
        self.losses[key] = count
        if known is None:
            self._add("losses", (*key, count))
        self._changed_losses[key] = count
        return True

    def lane_id(self, state: ProcessState, lane: str | None) -> int:
        """Return the number of a lane; None means the process's own lane."""
        found = self.lanes.get((state.number, lane))
        if found is None:
            found = self.lanes[state.number, lane] = len(self.lanes)
            self._add("lanes", (found, state.number, lane))
            self._note_place(state, lane or "")
        return found

    def _note_place(self, state: ProcessState, lane: str) -> None:
        """Derive a missing role and rank from the first lane named like `rank_3` or `replica_0`."""
        found = None if state.role else _LANE_OF_RANK.fullmatch(lane)
        if found is None:
            return
        state.role = _ROLES[found[1]]
        state.rank = int(found[2]) if state.rank is None else state.rank
        self._changed_processes[state.number] = state
        self._is_urgent = True

    def name_id(self, name: str) -> int:
        """Return the number of a span name."""
        found = self.names.get(name)
        if found is None:
            found = self.names[name] = len(self.names)
            self._add("names", (found, name))
        return found

    def series_id(self, process: int, name: str, kind: str, documentation: str, labels: str) -> int:
        """Return the number of a series."""
        found = self.series.get((process, name, kind, labels))
        if found is not None:
            return found
        labels = _clean_labels(labels)
        key = (process, name, kind, labels)
        found = self.series.get(key)
        if found is None:
            found = self.series[key] = len(self.series)
            self._add("series", (found, process, name, kind, documentation, labels))
        return found

    @property
    def is_behind(self) -> bool:
        """True while rows in `processes` and `ledger` are older than those in `taken`."""
        return bool(self._changed_processes)

    def save(self, connection: duckdb.DuckDBPyConnection, *, settle: bool = True) -> None:
        """Write new and changed entries, inside the caller's transaction.

        Without `settle`, new batches are only recorded in `taken`: updating rows costs as much as the rest of a small
        commit.
        """
        new: dict[str, list[tuple[object, ...]]] = self._new_rows
        if self._new_processes:
            new = {
                "processes": [_process_row(state) for state in self._new_processes],
                "ledger": [_ledger_row(state) for state in self._new_processes],
                **new,
            }
        for table, rows in new.items():
            self._insert(connection, table, rows)
        self._update_losses(connection)
        self._is_settled = settle or self._is_urgent
        if self._is_settled:
            fresh = {state.number for state in self._new_processes}
            self._update(
                connection, [state for number, state in self._changed_processes.items() if number not in fresh]
            )
        elif self._taken:
            self._insert(connection, "taken", self._taken)
            self._taken_rows += len(self._taken)

    def saved(self) -> None:
        """Clear the pending changes after the commit."""
        if self._is_settled:
            self._changed_processes.clear()
        self._is_settled = self._is_urgent = False
        for pending in (self._new_processes, self._taken, self._new_rows, self._changed_losses):
            pending.clear()

    def _insert(self, connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        self.inserts.insert(connection, table, [frame_of_rows(TABLES[table], rows)])

    def _update(self, connection: duckdb.DuckDBPyConnection, changed: list[ProcessState]) -> None:
        if changed:
            rows = [_change_row(state) for state in changed]
            with arriving(connection, [frame_of_rows(_CHANGE_TYPES, rows)]):
                connection.execute(_UPDATE_PROCESSES)
                connection.execute(_UPDATE_LEDGER)
        if self._taken_rows > _MAX_TAKEN_ROWS:
            connection.execute("DELETE FROM taken")
            self._taken_rows = 0

    def _update_losses(self, connection: duckdb.DuckDBPyConnection) -> None:
        losses = [(*key, count) for key, count in self._changed_losses.items()]
        if losses:
            with arriving(connection, [frame_of_rows(TABLES["losses"], losses)]):
                connection.execute(_UPDATE_LOSSES)


def _clean_labels(labels: str) -> str:
    """Return labels as a JSON object string with sorted keys and string values."""
    found = json_object(labels) or {}
    return _encode_sorted({key: str(value) for key, value in found.items()}).decode()


def _read_process(row: tuple[Any, ...]) -> ProcessState:
    """Return a process from a row of `_LOAD_PROCESSES`."""
    number, process_id, run_id, host, pid, role, rank, heartbeat, first_seen, last_seen, last_sent, final, *rest = row
    project, experiment_name, delay, hits, *ledger = rest
    process = Process(process_id=process_id, run_id=run_id, host=host, pid=pid, heartbeat_s=heartbeat)
    intake = Intake(process, first_seen)
    intake.ledger = Ledger(*ledger)
    intake.clock = ClockOffset(delay, hits, last_seen)
    intake.last_seen_ns, intake.last_sent_ns, intake.final = last_seen, last_sent, final
    return ProcessState(number, intake, role, rank, project, experiment_name)


def _ledger_row(state: ProcessState) -> tuple[object, ...]:
    return state.number, state.intake.ledger.low_water, state.intake.ledger.above()


def _change_row(state: ProcessState) -> tuple[object, ...]:
    names = state.project, state.experiment_name, state.role, state.rank
    return (*_ledger_row(state), *names, state.intake.process.heartbeat_s, *_intake_row(state.intake))


def _intake_row(intake: Intake) -> tuple[object, ...]:
    clock = intake.clock
    return intake.last_seen_ns, intake.last_sent_ns, intake.final, clock.offset_ns, clock.delay_ns, clock.hits


def _process_row(state: ProcessState) -> tuple[object, ...]:
    process = state.intake.process
    names = state.project, state.experiment_name, state.role, state.rank
    labels = msgspec.json.encode(process.labels).decode()
    seen = process.started_ns, process.heartbeat_s, state.intake.first_seen_ns
    who = process.process_id, process.run_id, process.host, process.pid
    return (state.number, *who, *names, labels, *seen, *_intake_row(state.intake))


_CLOCK = ("clock_offset_ns", "delay_ns", "delay_hits")
_SEEN = ("heartbeat_s", "last_seen_ns", "last_sent_ns", "final")
_CHANGING = ("project", "experiment_name", "role", "rank", *_SEEN, *_CLOCK)
_CHANGE_TYPES = TABLES["ledger"] | {name: TABLES["processes"][name] for name in _CHANGING}


def _update(table: str, columns: Sequence[str], keys: Sequence[str] = ("process",)) -> str:
    """Return the statement that copies columns from `arriving`."""
    values = ", ".join(f"{name} = arriving.{name}" for name in columns)
    where = " AND ".join(f"{table}.{name} = arriving.{name}" for name in keys)
    return f"UPDATE {table} SET {values} FROM arriving WHERE {where}"  # noqa: S608  (names from this module)


_LOAD_PROCESSES = """
    SELECT process, process_id, run_id, host, pid, role, rank, heartbeat_s, first_seen_ns, last_seen_ns,
        last_sent_ns, final, project, experiment_name, delay_ns, delay_hits, low_water, above
    FROM processes JOIN ledger USING (process)
"""
_LOAD_TAKEN = "SELECT process, sequence, received_ns, sent_ns FROM taken ORDER BY rowid"
_LOAD_OPEN = "SELECT process, span_id, lane_id, depth FROM open_span_data JOIN lanes USING (lane_id)"
_UPDATE_PROCESSES = _update("processes", _CHANGING)
_UPDATE_LEDGER = _update("ledger", ("low_water", "above"))
_UPDATE_LOSSES = _update("losses", ("count",), ("process", "kind", "reason"))
