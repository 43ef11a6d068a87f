"""What each process of a role did in each step, to compare it with its peers."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.robust import Column, union_seconds
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.span_table import SpanTable, StateColumns, state_columns
from rl_insight.store.queries.intervals import by_group

_LATE_NS = 30 * SECOND
_KEPT = 5
"""As many as rules use."""


@dataclass(slots=True)
class RoleStep:
    """One step of one role: the seconds of each state by unit."""

    role: str
    step: int
    start_ns: int
    end_ns: int
    states: list[StateColumns] = field(default_factory=list)
    """Only until the step is settled."""
    lanes: Column = field(default_factory=lambda: np.empty(0, np.int64))
    by_lane: bool = False
    """Units are lanes: they all belong to a single process."""
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    """State name to unit, a process or a lane, to seconds; filled when the step is settled."""


class RoleBook:
    """The steps of every role, by the step number under which each process recorded its work."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._open: dict[str, dict[int, RoleStep]] = {}
        self._latest: Column = np.empty(0, np.int64)
        """By lane: the highest step that it has begun."""
        self.settled: list[RoleStep] = []
        self.recent: dict[str, list[RoleStep]] = {}

    def add(self, states: SpanTable, steps: Column) -> None:
        """Add ended states, ordered by their ends, and the step of each."""
        if not states.size:
            return
        roles = self._feed.owners(states)[1]
        numbers, place = np.unique(steps, return_inverse=True)
        for key, places in by_group(roles * numbers.size + place):
            role, number = divmod(key, numbers.size)
            self._add_to_step(self._feed.roles[role], int(numbers[number]), state_columns(states, places))

    def _add_to_step(self, role: str, step: int, states: StateColumns) -> None:
        open_steps = self._open.setdefault(role, {})
        found = open_steps.get(step)
        if found is None:
            done = self.recent.get(role)
            if done and step <= done[-1].step:
                # Late records do not reopen a settled step; a resumed run does.
                is_new = states.start_ns >= done[-1].end_ns + _LATE_NS
                if not is_new.any():
                    return
                states = StateColumns(*(column[int(is_new.argmax()) :] for column in states))
            found = open_steps[step] = RoleStep(role, step, int(states.start_ns[0]), int(states.end_ns[0]))
        found.start_ns = min(found.start_ns, int(states.start_ns.min()))
        found.end_ns = max(found.end_ns, int(states.end_ns.max()))
        found.states.append(states)
        found.lanes = np.union1d(found.lanes, states.lane_id)
        missing = len(self._feed.lanes) - self._latest.size
        if missing:
            self._latest = np.concatenate([self._latest, np.full(missing, np.iinfo(np.int64).min)])
        np.maximum.at(self._latest, states.lane_id, step)

    def has_left(self, process: int, role: str, step: int | None, name: str) -> bool:
        """Return whether a process has already ended a state in a step that is not settled yet."""
        found = None if step is None else self._open.get(role, {}).get(step)
        return found is not None and any(
            self._feed.lanes[lane][0] == process and self._feed.names[number] == name
            for states in found.states
            for lane, number in zip(states.lane_id.tolist(), states.name_id.tolist(), strict=True)
        )

    def settle(self, as_of_ns: int) -> None:
        """Close the steps that no process of the role is working on anymore."""
        self.settled = []
        for role, steps in self._open.items():
            for number in sorted(steps):
                step = steps[number]
                has_passed = bool((self._latest[step.lanes] > number).all())
                is_late = any(other >= number + 2 for other in steps) and as_of_ns > step.end_ns + _LATE_NS
                if not has_passed and not is_late:
                    continue
                del steps[number]
                self._sum_up(step)
                self.settled.append(step)
                recent = self.recent.setdefault(role, [])
                recent.append(step)
                del recent[:-_KEPT]

    def _sum_up(self, step: RoleStep) -> None:
        names, lanes, starts, ends = map(np.concatenate, zip(*step.states, strict=True))
        owners = self._feed.owner_of_lane[lanes]
        step.by_lane = bool((owners == owners[0]).all())
        units = lanes if step.by_lane else owners
        names, units, seconds = union_seconds((names, units), starts, ends)
        for name, places in by_group(names):
            of_name = zip(units[places].tolist(), seconds[places].tolist(), strict=True)
            step.seconds.setdefault(self._feed.names[name], {}).update(of_name)
        step.states = []
