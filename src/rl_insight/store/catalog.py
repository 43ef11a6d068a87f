"""What a run file knows by number: processes, lanes, names, series; kept in memory while the file is open.

The one writer of a file looks everything up here, so the tables need no index and no lookup joins. New entries are
written in the same transaction as the rows that refer to them. When a transaction fails, the catalog is loaded again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import duckdb
import msgspec
import numpy as np

from rl_insight.intake import ClockOffset, Intake, Ledger, Liveness, silence_ns
from rl_insight.schema import Batch, Process
from rl_insight.store.inserts import TableInserts, arriving, frame_of_rows, insert

_MAX_TAKEN_ROWS = 50_000
"""Those that the ledger has are of no use. They are deleted when there are so many: reading them takes 50 ms."""
_LANE_OF_RANK = re.compile(r"(rank|replica)_(\d{1,9})")
_ROLES = {"rank": "worker", "replica": "rollout"}


@dataclass(slots=True)
class ProcessState:
    """One process in a run file."""

    number: int
    intake: Intake
    role: str
    rank: int | None
    is_named: bool
    """True when its row has a project or an experiment."""
    open_spans: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Span id to its lane and depth."""


class Catalog:
    """The numbers in use, and what has to be written about them with the next commit."""

    def __init__(self) -> None:
        self.inserts = TableInserts()
        self.processes: dict[str, ProcessState] = {}
        self.lanes: dict[tuple[int, str | None], int] = {}
        self.names: dict[str, int] = {}
        self.series: dict[tuple[int, str, str, str], int] = {}
        self.losses: dict[tuple[int, str, str], int] = {}
        self._new_processes: list[ProcessState] = []
        self._changed_processes: dict[int, ProcessState] = {}
        """Those whose rows in `processes` and `ledger` are behind."""
        self._taken: list[tuple[int, int, int, int]] = []
        """The batches of the transaction."""
        self._taken_rows = 0
        """How many rows `taken` has."""
        self._is_urgent = False
        """True when more has changed than what `taken` tells."""
        self._is_settled = False
        """True when the transaction brings all rows up to date."""
        self._new_titles: list[ProcessState] = []
        """Those that now say their project or experiment: a scraped page has them with its first metric."""
        self._new_lanes: list[tuple[int, int, str | None]] = []
        self._new_names: list[tuple[int, str]] = []
        self._new_series: list[tuple[int, int, str, str, str, str]] = []
        self._new_losses: list[tuple[int, str, str, int]] = []
        self._new_states: list[tuple[int, int, str]] = []
        self._new_history: list[tuple[int, int, str, str, int]] = []
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
        """Return the state of the process that made a batch, making one for a process seen for the first time."""
        state = self.processes.get(batch.process.process_id)
        if state is None:
            process = batch.process
            number, is_named = len(self.processes), _has_names(process)
            state = ProcessState(number, Intake(process, now_ns), process.role, process.rank, is_named)
            self.processes[batch.process.process_id] = state
            self._new_processes.append(state)
        return state

    def take(self, batch: Batch, state: ProcessState, now_ns: int, *, live: bool) -> bool:
        """Take a batch; False if it had been taken before."""
        intake = state.intake
        was_seen_ns, before = intake.last_seen_ns, intake.liveness(now_ns)
        told = intake.process.heartbeat_s, intake.clock.offset_ns
        if not intake.take(batch, now_ns, live=live):
            return False
        self._changed_processes[state.number] = state
        self._taken.append((state.number, batch.sequence, now_ns, batch.sent_ns))
        if batch.final or not live or (intake.process.heartbeat_s, intake.clock.offset_ns) != told:
            self._is_urgent = True
        if not state.is_named and _has_names(batch.process):
            state.is_named = True
            self._new_titles.append(state)
        if live:
            self._note_liveness(state, was_seen_ns, before, now_ns)
        for loss in batch.losses:
            if self._note_loss((state.number, loss.kind, loss.reason), loss.count) and live:
                self._new_history.append((state.number, now_ns, loss.kind, loss.reason, loss.count))
        return True

    def _note_liveness(self, state: ProcessState, was_seen_ns: int, before: Liveness, now_ns: int) -> None:
        """Write down how a process changed; that it fell silent is known when it is heard of again."""
        intake = state.intake
        if not was_seen_ns:
            self._new_states.append((state.number, now_ns, "live"))
        elif before == "silent":
            self._new_states.append((state.number, was_seen_ns + silence_ns(intake.process.heartbeat_s), "silent"))
            self._new_states.append((state.number, now_ns, "live"))
        if intake.final and before != "ended":
            self._new_states.append((state.number, now_ns, "ended"))

    def _note_loss(self, key: tuple[int, str, str], count: int) -> bool:
        """Take note of a total; False if nothing was lost since the last one."""
        known = self.losses.get(key)
        if known is not None and known >= count:
            return False
        self.losses[key] = count
        if known is None:
            self._new_losses.append((*key, count))
        self._changed_losses[key] = count
        return True

    def lane_id(self, state: ProcessState, lane: str | None) -> int:
        """Return the number of a lane; None is the process's own."""
        found = self.lanes.get((state.number, lane))
        if found is None:
            found = self.lanes[state.number, lane] = len(self.lanes)
            self._new_lanes.append((found, state.number, lane))
            self._note_place(state, lane or "")
        return found

    def _note_place(self, state: ProcessState, lane: str) -> None:
        """Take the role and rank of a process that gave none from its first lane that tells: `rank_3`, `replica_0`."""
        told = None if state.role else _LANE_OF_RANK.fullmatch(lane)
        if told is None:
            return
        state.role = _ROLES[told[1]]
        state.rank = int(told[2]) if state.rank is None else state.rank
        self._changed_processes[state.number] = state
        self._is_urgent = True

    def name_id(self, name: str) -> int:
        """Return the number of a span name."""
        found = self.names.get(name)
        if found is None:
            found = self.names[name] = len(self.names)
            self._new_names.append((found, name))
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
            self._new_series.append((found, process, name, kind, documentation, labels))
        return found

    @property
    def is_behind(self) -> bool:
        """True while rows in `processes` and `ledger` are behind what `taken` tells."""
        return bool(self._changed_processes)

    def save(self, connection: duckdb.DuckDBPyConnection, *, settle: bool = True) -> None:
        """Write what is new or changed, inside the caller's transaction.

        Without `settle`, which batches were taken is added to `taken` only: updating rows costs as much as all the
        rest of a small commit.
        """
        insert(connection, "processes", _PROCESS_TYPES, [_process_row(state) for state in self._new_processes])
        insert(connection, "ledger", _LEDGER_TYPES, [_ledger_row(state) for state in self._new_processes])
        insert(connection, "lanes", {"a": np.int32, "b": np.int32, "c": str}, self._new_lanes)
        insert(connection, "names", {"a": np.int32, "b": str}, self._new_names)
        insert(connection, "series", _SERIES_TYPES, self._new_series)
        insert(connection, "losses", _LOSS_TYPES, self._new_losses)
        insert(connection, "process_states", _STATE_TYPES, self._new_states)
        insert(connection, "loss_history", _HISTORY_TYPES, self._new_history)
        for state in self._new_titles:
            told = state.intake.process
            given = {"process": state.number, "project": told.project, "experiment": told.experiment_name}
            connection.execute(_UPDATE_TITLES, given)
        self._update_losses(connection)
        self._is_settled = settle or self._is_urgent
        if self._is_settled:
            fresh = {state.number for state in self._new_processes}
            self._update(
                connection, [state for number, state in self._changed_processes.items() if number not in fresh]
            )
        elif self._taken:
            self.inserts.insert(connection, "taken", [frame_of_rows(_TAKEN_TYPES, self._taken)])
            self._taken_rows += len(self._taken)

    def saved(self) -> None:
        """Forget what was pending: the transaction is through."""
        if self._is_settled:
            self._changed_processes.clear()
        self._is_settled = self._is_urgent = False
        for pending in (
            self._new_processes,
            self._taken,
            self._new_titles,
            self._new_lanes,
            self._new_names,
            self._new_series,
            self._new_losses,
            self._new_states,
            self._new_history,
        ):
            pending.clear()
        self._changed_losses.clear()

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
            with arriving(connection, [frame_of_rows(_LOSS_TYPES, losses)]):
                connection.execute(_UPDATE_LOSSES)


def _clean_labels(labels: str) -> str:
    """Return labels as the text of a JSON object with sorted keys and text values."""
    try:
        found = msgspec.json.decode(labels) if labels else {}
    except (msgspec.DecodeError, RecursionError):
        found = {}
    if not isinstance(found, dict):
        found = {}
    return msgspec.json.encode({key: str(found[key]) for key in sorted(found)}).decode()


def _read_process(row: tuple[Any, ...]) -> ProcessState:
    """Return a process from a row of `_LOAD_PROCESSES`."""
    number, process_id, run_id, host, pid, role, rank, heartbeat, first_seen, last_seen, last_sent, final, *rest = row
    is_named, delay, hits, *ledger = rest
    process = Process(process_id=process_id, run_id=run_id, host=host, pid=pid, heartbeat_s=heartbeat)
    intake = Intake(process, first_seen)
    intake.ledger = Ledger(*ledger)
    intake.clock = ClockOffset(delay, hits, last_seen)
    intake.last_seen_ns, intake.last_sent_ns, intake.final = last_seen, last_sent, final
    return ProcessState(number, intake, role, rank, is_named)


def _has_names(process: Process) -> bool:
    return bool(process.project or process.experiment_name)


def _ledger_row(state: ProcessState) -> tuple[object, ...]:
    return state.number, state.intake.ledger.low_water, state.intake.ledger.above()


def _change_row(state: ProcessState) -> tuple[object, ...]:
    heartbeat_s = state.intake.process.heartbeat_s
    return state.number, state.role, state.rank, heartbeat_s, *_intake_row(state.intake), *_ledger_row(state)[1:]


def _intake_row(intake: Intake) -> tuple[object, ...]:
    clock = intake.clock
    return intake.last_seen_ns, intake.last_sent_ns, intake.final, clock.offset_ns, clock.delay_ns, clock.hits


def _process_row(state: ProcessState) -> tuple[object, ...]:
    process = state.intake.process
    return (
        state.number,
        process.process_id,
        process.run_id,
        process.host,
        process.pid,
        process.project,
        process.experiment_name,
        state.role,
        state.rank,
        msgspec.json.encode(process.labels).decode(),
        process.started_ns,
        process.heartbeat_s,
        state.intake.first_seen_ns,
        *_intake_row(state.intake),
    )


_PROCESS_TYPES = {
    "process": np.int32,
    "process_id": str,
    "run_id": str,
    "host": str,
    "pid": np.int64,
    "project": str,
    "experiment_name": str,
    "role": str,
    "rank": np.int64,
    "labels": str,
    "started_ns": np.int64,
    "heartbeat_s": np.float64,
    "first_seen_ns": np.int64,
    "last_seen_ns": np.int64,
    "last_sent_ns": np.int64,
    "final": np.bool_,
    "clock_offset_ns": np.int64,
    "delay_ns": np.int64,
    "delay_hits": np.int32,
}
_LEDGER_TYPES = {"process": np.int32, "low_water": np.int64, "above": str}
_TAKEN_TYPES = {"process": np.int32, "sequence": np.int64, "received_ns": np.int64, "sent_ns": np.int64}
_LOSS_TYPES = {"process": np.int32, "kind": str, "reason": str, "count": np.int64}
_STATE_TYPES = {"process": np.int32, "time_ns": np.int64, "state": str}
_HISTORY_TYPES = {
    "process": np.int32,
    "time_ns": np.int64,
    "kind": str,
    "reason": str,
    "count": np.int64,
}
_SERIES_TYPES = {
    "series_id": np.int32,
    "process": np.int32,
    "name": str,
    "kind": str,
    "documentation": str,
    "labels": str,
}
_CHANGE_TYPES = {
    name: _PROCESS_TYPES[name]
    for name in (
        "process",
        "role",
        "rank",
        "heartbeat_s",
        "last_seen_ns",
        "last_sent_ns",
        "final",
        "clock_offset_ns",
        "delay_ns",
        "delay_hits",
    )
} | {"low_water": np.int64, "above": str}

_LOAD_PROCESSES = """
    SELECT process, process_id, run_id, host, pid, role, rank, heartbeat_s, first_seen_ns, last_seen_ns,
        last_sent_ns, final, project <> '' OR experiment_name <> '', delay_ns, delay_hits, low_water, above
    FROM processes JOIN ledger USING (process)
"""
_LOAD_TAKEN = "SELECT process, sequence, received_ns, sent_ns FROM taken ORDER BY rowid"
_LOAD_OPEN = "SELECT process, span_id, lane_id, depth FROM open_span_data JOIN lanes USING (lane_id)"
_UPDATE_PROCESSES = """
    UPDATE processes SET
        role = arriving.role, rank = arriving.rank, heartbeat_s = arriving.heartbeat_s,
        last_seen_ns = arriving.last_seen_ns, last_sent_ns = arriving.last_sent_ns, final = arriving.final,
        clock_offset_ns = arriving.clock_offset_ns, delay_ns = arriving.delay_ns, delay_hits = arriving.delay_hits
    FROM arriving WHERE processes.process = arriving.process
"""
_UPDATE_TITLES = "UPDATE processes SET project = $project, experiment_name = $experiment WHERE process = $process"
_UPDATE_LEDGER = """
    UPDATE ledger SET low_water = arriving.low_water, above = arriving.above
    FROM arriving WHERE ledger.process = arriving.process
"""
_UPDATE_LOSSES = """
    UPDATE losses SET count = arriving.count FROM arriving
    WHERE losses.process = arriving.process AND losses.kind = arriving.kind AND losses.reason = arriving.reason
"""
