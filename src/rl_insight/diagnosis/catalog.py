"""The known processes, lanes, series and names of a run."""

from __future__ import annotations

from typing import Any

import numpy as np

from rl_insight.diagnosis.robust import Column
from rl_insight.diagnosis.rows import LossRow, ProcessRow, SeriesRow
from rl_insight.diagnosis.span_table import SpanTable
from rl_insight.metrics import HISTOGRAM
from rl_insight.metrics.canonical import canonical_name, is_hardware
from rl_insight.schema.names import TARGET_PROCESS_PREFIX
from rl_insight.schema.records import read_object
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.step_counters import step_counter

_PROCESSES = """
    SELECT process, process_id, role, rank, host, labels, started_ns, heartbeat_s, last_seen_ns, final,
        delay_ns IS NOT NULL, clock_offset_ns
    FROM processes WHERE process >= $known ORDER BY process
"""
_SIGNS_OF_LIFE = """
    SELECT process, last_seen_ns, final, delay_ns IS NOT NULL, clock_offset_ns FROM processes WHERE process < $known
"""


class RunCatalog:
    """The numbered objects that rows refer to; it only grows."""

    def __init__(self) -> None:
        self.processes: dict[int, ProcessRow] = {}
        self.lanes: dict[int, tuple[int, str | None]] = {}
        self.series: dict[int, SeriesRow] = {}
        """Only those that rules use: ten thousand processes may have a hundred thousand others."""
        self.names: list[str] = [""]
        """Span names, by number; the first is for unnamed spans."""
        self.roles: list[str] = []
        self.owner_of_lane: Column = np.empty(0, np.int64)
        self.hosts: dict[str, int] = {}
        self._of_process: Column = np.empty((0, 2), np.int64)
        """By process: the number of its role, and the number of its host."""
        self._incarnations: dict[tuple[str, int | None], list[int]] = {}
        self._by_role: dict[str, list[ProcessRow]] = {}
        self._last_start_ns: dict[str, int] = {}
        self.is_known: Column = np.empty(0, np.bool_)
        """By series: whether rules use it."""
        self.is_plain: Column = np.empty(0, np.bool_)
        """By series: whether training code records it, unlike hardware and scrape targets."""
        self.owner_of_series: Column = np.empty(0, np.int64)
        self.losses: list[LossRow] = []

    def owners(self, spans: SpanTable) -> tuple[Column, Column]:
        """Return the process of each span, and the number of its role."""
        owners = self.owner_of_lane[spans.lane_id]
        return owners, self._of_process[owners, 0]

    def roles_of(self, processes: Column) -> Column:
        """Return the number of the role of each process."""
        return np.asarray(self._of_process[processes, 0])

    def hosts_of(self, processes: Column) -> Column:
        """Return the number of the host of each process."""
        return np.asarray(self._of_process[processes, 1])

    def is_replaced(self, process: ProcessRow, as_of_ns: int) -> bool:
        """Return whether another process has replaced one that fell silent.

        That is one of the same role and rank that started afterward, or any of its role if all earlier ones are silent:
        the run was resumed.
        """
        peers = self._by_role.get(process.role, [])
        if self._last_start_ns.get(process.role, 0) <= process.last_seen_ns:
            return False  # the usual case, and thousands of processes may fall silent at once
        starts = {one.number: one.started_ns + one.clock_offset_ns for one in peers}
        later = [one for one in peers if process.last_seen_ns < starts[one.number] <= as_of_ns]
        if not later or any(one.rank == process.rank for one in later):
            return bool(later)
        resumed_ns = min(starts[one.number] for one in later)
        return all(one.last_seen_ns < resumed_ns for one in peers if starts[one.number] < resumed_ns)

    def update(self, cursor: Cursor) -> None:
        """Read new objects, and when each process last reported."""
        run = cursor.execute
        count = {"known": len(self.processes)}
        for number, last, final, is_live, offset in run(_SIGNS_OF_LIFE, count).fetchall():
            known = self.processes[number]
            known.last_seen_ns, known.ended, known.is_live, known.clock_offset_ns = last, final, is_live, offset
        if found := run(_PROCESSES, count).fetchall():
            numbers = np.array([self._note_process(row) for row in found], np.int64)
            self._of_process = np.concatenate([self._of_process, numbers])
        sql = "SELECT lane_id, process, lane FROM lanes WHERE lane_id >= $known ORDER BY lane_id"
        if found := run(sql, {"known": len(self.lanes)}).fetchall():
            self.lanes |= {lane_id: (process, lane) for lane_id, process, lane in found}
            owners = np.array([process for _, process, _ in found], np.int64)
            self.owner_of_lane = np.concatenate([self.owner_of_lane, owners])
        sql = "SELECT name FROM names WHERE name_id >= $known ORDER BY name_id"
        self.names += [name for (name,) in run(sql, {"known": len(self.names) - 1}).fetchall()]
        sql = "SELECT series_id, process, name, kind, labels FROM series WHERE series_id >= $known ORDER BY series_id"
        if found := run(sql, {"known": self.owner_of_series.size}).fetchall():
            is_known, is_plain = np.array([self._note_series(*row) for row in found], np.bool_).T
            self.is_known = np.concatenate([self.is_known, is_known])
            self.is_plain = np.concatenate([self.is_plain, is_plain])
            owners = np.array([row[1] for row in found], np.int64)
            self.owner_of_series = np.concatenate([self.owner_of_series, owners])
        losses = run("SELECT process, kind, reason, count FROM losses WHERE count > 0").fetchall()
        self.losses = [LossRow(*row) for row in losses]

    def _note_process(self, row: tuple[Any, ...]) -> tuple[int, int]:
        """Add a process; returns the number of its role, and the number of its host."""
        number, process_id, role, rank, host, labels, started, heartbeat, last, final, is_live, offset = row
        before = self._incarnations.setdefault((role, rank), [])
        before.append(number)
        gpu = read_object(labels).get("gpu")
        made = self.processes[number] = ProcessRow(
            number, process_id, role or "", rank, host, gpu, started, heartbeat or 5.0, last, final, is_live, offset,
            len(before) - 1 if rank is not None else 0, process_id.startswith(TARGET_PROCESS_PREFIX),
        )  # fmt: skip
        if made.role not in self._by_role:
            self._by_role[made.role] = []
            self.roles.append(made.role)
        self._by_role[made.role].append(made)
        self._last_start_ns[made.role] = max(self._last_start_ns.get(made.role, 0), started + offset)
        return self.roles.index(made.role), self.hosts.setdefault(host, len(self.hosts))

    def _note_series(self, number: int, process: int, name: str, kind: str, labels: str | None) -> tuple[bool, bool]:
        """Add a series; returns whether rules use it, and whether training code records it."""
        is_measured = is_hardware(name) and "source" in read_object(labels)
        owner = self.processes.get(process)
        is_target = owner is None or owner.is_target
        is_known = is_measured or canonical_name(name) is not None or step_counter(name) is not None
        if is_known:
            self.series[number] = SeriesRow(number, process, name, kind, read_object(labels))
        return is_known, not is_measured and kind != HISTOGRAM.name and not is_target
