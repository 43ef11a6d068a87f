"""Which role leads the steps of a run, and which of its processes resumed it, as queries define both."""

from __future__ import annotations

import numpy as np

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.robust import Column
from rl_insight.diagnosis.rows import NEVER
from rl_insight.diagnosis.span_table import NO_STEP, SpanTable
from rl_insight.store.queries.intervals import by_group
from rl_insight.store.queries.step_definition import Extent, Lifetime, generations, leading_role, running_until_ns


class Leaders:
    """When each role recorded each step, to choose the role that leads the steps."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._steps: dict[str, dict[int, Extent]] = {}

    def add(self, spans: SpanTable) -> None:
        """Add spans that carry a step."""
        for number, places in by_group(self._feed.owners(spans)[1]):
            steps = self._steps.setdefault(self._feed.roles[number], {})
            for step, some in by_group(spans.step[places]):
                first_ns, last_ns = int(spans.start_ns[places[some]].min()), int(spans.end_ns[places[some]].max())
                known = steps.get(step, (first_ns, last_ns))
                steps[step] = (min(known[0], first_ns), max(known[1], last_ns))

    @property
    def best(self) -> str | None:
        """The leading role; None before there are any."""
        return leading_role(self._steps) if self._steps else None


class GenerationBook:
    """The generation of each process of the leading role, decided when it first records a step.

    A process keeps its generation: what becomes known later does not change finished steps.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._first: Column = np.empty(0, np.int64)
        self._last: Column = np.empty(0, np.int64)
        """By process: when it first and last recorded a step."""
        self._found: Column = np.empty(0, np.int64)
        """By process: its generation; -1 before it has recorded a step."""
        self._as_of_ns = 0
        self.restarted_ns: int | None = None
        """When a process that replaces another of its role and rank last joined."""

    def begin(self, as_of_ns: int) -> None:
        """Begin a tick."""
        self._as_of_ns = as_of_ns
        missing = len(self._feed.processes) - self._found.size
        if missing:
            self._first = np.concatenate([self._first, np.full(missing, NEVER)])
            self._last = np.concatenate([self._last, np.full(missing, -NEVER)])
            self._found = np.concatenate([self._found, np.full(missing, -1)])

    def of_spans(self, spans: SpanTable) -> Column:
        """Add ended spans; returns the generation of each, if it carries a step."""
        owners = self._feed.owner_of_lane[spans.lane_id]
        is_numbered = spans.step != NO_STEP
        numbered = owners[is_numbered]
        np.minimum.at(self._first, numbered, spans.start_ns[is_numbered])
        np.maximum.at(self._last, numbered, spans.end_ns[is_numbered])
        self._decide(np.flatnonzero((self._found < 0) & (self._first < NEVER)))
        return np.asarray(self._found[owners])

    def of_process(self, process: int, first_ns: int, last_ns: int) -> int:
        """Add a record of a step; returns the generation of its process."""
        self._first[process] = min(self._first[process], first_ns)
        self._last[process] = max(self._last[process], last_ns)
        if self._found[process] < 0:
            self._decide(np.array([process]))
        return int(self._found[process])

    def _decide(self, processes: Column) -> None:
        """Decide the generation of new processes, given all processes of their roles."""
        for role, places in by_group(self._feed.roles_of(processes)) if processes.size else ():
            members = np.flatnonzero(self._first < NEVER)
            members = members[self._feed.roles_of(members) == role]
            found = generations(map(self._lifetime, members.tolist()))
            known = members[self._found[members] >= 0]
            latest = int(self._found[known].max(initial=-1))
            newest = max((found[process] for process in known.tolist()), default=-1)
            for process in sorted(processes[places].tolist(), key=found.__getitem__):
                latest += found[process] > newest
                newest = max(newest, found[process])
                self._found[process] = latest
                if self._feed.processes[process].incarnation:
                    self.restarted_ns = max(self.restarted_ns or 0, int(self._first[process]))

    def _lifetime(self, process: int) -> Lifetime:
        row = self._feed.processes[process]
        until_ns: int | None = NEVER  # when an imported process exited is unknown
        if row.is_live:
            # A stored run also has later exits.
            has_exited = row.ended and row.last_seen_ns <= self._as_of_ns
            until_ns = None if has_exited else running_until_ns(row.last_seen_ns, row.heartbeat_s, self._as_of_ns)
        return Lifetime(
            process,
            row.rank,
            row.started_ns + row.clock_offset_ns,
            int(self._first[process]),
            int(self._last[process]),
            until_ns,
        )
