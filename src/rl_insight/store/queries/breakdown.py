"""Where the time of steps went: the outermost states of a role's lanes, the states inside them, and idle time.

All lanes are laid end to end on a single axis, so that sums over thousands of intervals are a few passes over arrays. A
state nested in another on its lane is never counted twice. Where several outermost states of a lane overlap, as with
asyncio, their time is divided evenly among their names, so that a lane adds up to at most the step.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.schema.names import is_waiting
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.intervals import covered_until, merged
from rl_insight.store.queries.states import States
from rl_insight.store.queries.step_definition import by_leadership
from rl_insight.store.queries.steps import StepWindow, finished_steps

_MAX_INSIDE = 8

Integers = NDArray[np.int64]


class InsideTime(msgspec.Struct, frozen=True):
    """Time spent inside a state; several may run at once, so they do not add up."""

    name: str
    wall_ns: int


class PhaseTime(msgspec.Struct, frozen=True):
    """How long an outermost state ran during a step, on an average lane."""

    name: str
    wall_ns: int
    inside: list[InsideTime]
    """The longest first."""


class StepBreakdown(msgspec.Struct, frozen=True):
    """Where the time of a finished step went; phases and idle time add up to the step."""

    step: int
    start_ns: int
    end_ns: int
    lanes: int
    phases: list[PhaseTime]
    """The longest over all steps first."""
    idle_ns: int
    """Without any state, on an average lane."""


class Breakdown(msgspec.Struct, frozen=True):
    """Where the time of steps went on the lanes of a role."""

    role: str
    roles: list[str]
    """Roles that have states in these steps, the leading role first."""
    steps: list[StepBreakdown]


class RoleIdle(msgspec.Struct, frozen=True):
    """The idle share of the lanes of a role during some steps."""

    role: str
    lanes: int
    share: float
    """Of an average lane: time without a state or in a waiting state."""
    worst_lane_id: int
    worst_share: float


def breakdown(cursor: Cursor, first: int, last: int, role: str | None = None, now_ns: int | None = None) -> Breakdown:
    """Return where the time of the finished steps from `first` to `last` went, by default on the leading role's lanes.

    The outermost states and the idle time add up to the step; each state lists the states inside it. A process's main
    lane represents the process, and the states of its other lanes count as inside; if the main lane has no states, each
    of the other lanes counts. Session phases run inside the states of their process, and count on their own while it
    has none. A role without states is broken down by its outer spans.
    """
    leader, chosen = finished_steps(cursor, first, last, now_ns)
    if not chosen:
        return Breakdown(role or leader, [], [])
    states = States(cursor, chosen, now_ns)
    roles = by_leadership(states.roles(), leader)
    wanted = role if role is not None else (roles[0] if roles else leader)
    if not states.has_states(wanted):
        states = States(cursor, chosen, now_ns, spans_of=wanted)
    axis = _axis(states, wanted)
    return Breakdown(wanted, roles, [] if axis is None else axis.steps(chosen))


def idle_by_role(cursor: Cursor, first: int, last: int, now_ns: int | None = None) -> list[RoleIdle]:
    """Return how idle the lanes of each role were during the finished steps from `first` to `last`, idlest first."""
    _, chosen = finished_steps(cursor, first, last, now_ns)
    if not chosen:
        return []
    states = States(cursor, chosen, now_ns)
    found = []
    for role in states.roles():
        axis = _axis(states, role)
        if axis is not None:
            found.append(axis.idle(role, chosen))
    return sorted(found, key=lambda one: (-one.share, one.role))


def _axis(states: States, role: str) -> _Axis | None:
    """Return the lanes of a role on one axis; None if it has no states."""
    members = [lane_id for lane_id in sorted(states.active) if states.lanes[lane_id].role == role]
    if not members:
        return None
    by_process: dict[int, list[int]] = {}
    for lane_id in members:
        by_process.setdefault(states.lanes[lane_id].process, []).append(lane_id)
    represented_by: dict[int, int] = {}
    for lanes in by_process.values():
        stated = [lane_id for lane_id in lanes if lane_id in states.stated]
        own = [lane_id for lane_id in stated or lanes if states.lanes[lane_id].lane is None]
        for lane_id in lanes:
            if own:
                represented_by[lane_id] = own[0]
            else:
                represented_by[lane_id] = (
                    lane_id if lane_id in stated or not stated else _around(states, lane_id, stated)
                )
    chosen = [lane_id for lane_id in members if represented_by[lane_id] == lane_id]
    places = {lane_id: place for place, lane_id in enumerate(chosen)}
    return _Axis(states, chosen, {lane_id: places[represented_by[lane_id]] for lane_id in members})


def _around(states: States, lane_id: int, stated: list[int]) -> int:
    """Return the lane whose states contain most of a lane's phases: the only candidate, or itself if none does."""
    if len(stated) == 1:
        return stated[0]
    lanes, starts, ends = (states.columns[name] for name in ("lane_id", "start_ns", "end_ns"))
    own = merged(starts[lanes == lane_id], ends[lanes == lane_id])
    covered = {}
    for other in stated:
        others = merged(starts[lanes == other], ends[lanes == other])
        covered[other] = int((covered_until(*others, own[1]) - covered_until(*others, own[0])).sum())
    most = max(covered, key=lambda other: covered[other])
    return most if 2 * covered[most] >= int((own[1] - own[0]).sum()) else lane_id


class _Axis:
    """The lanes of a role, end to end, each as long as the window."""

    def __init__(self, states: States, lane_ids: list[int], places: dict[int, int]) -> None:
        self.lane_ids = lane_ids
        self._names = states.names
        self._origin_ns = states.start_ns
        self._length = states.end_ns - states.start_ns
        columns = states.columns
        used = np.isin(columns["lane_id"], np.array(list(places), np.int64))
        lanes = columns["lane_id"][used]
        known = np.zeros(max(places) + 1, np.int64)
        known[list(places)] = list(places.values())
        place = known[lanes]
        offsets = place * self._length - self._origin_ns
        self._start = offsets + np.maximum(columns["start_ns"][used], states.start_ns)
        self._end = offsets + np.minimum(columns["end_ns"][used], states.end_ns)
        self._name = columns["name_id"][used]
        is_chosen = np.isin(lanes, np.array(lane_ids, np.int64))
        # A span that arrived before its parent has an unknown depth, but a known parent.
        has_outer = np.isin(columns["parent_id"][used], columns["span_id"][used][is_chosen])
        self._is_outer = is_chosen & ~has_outer & ~self._nested(columns["depth"][used], is_chosen)
        self._fills = states.is_phase[used] & ~is_chosen
        """Phases that count while their process has no state."""
        self._place = place

    def _nested(self, depth: Integers, is_chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which states are fully contained in outer states of their lane."""
        nested = np.zeros(len(depth), np.bool_)
        for level in np.unique(depth[is_chosen])[1:]:
            above = is_chosen & (depth < level)
            starts, ends = merged(self._start[above], self._end[above])
            here = np.flatnonzero(is_chosen & (depth == level))
            place = np.searchsorted(starts, self._start[here], "right") - 1
            nested[here] = (place >= 0) & (ends[place] >= self._end[here])
        return nested

    def _window(self, start_ns: int, end_ns: int) -> tuple[Integers, Integers]:
        """Return the position of a time window on each lane."""
        lanes = np.arange(len(self.lane_ids), dtype=np.int64) * self._length - self._origin_ns
        return lanes + start_ns, lanes + end_ns

    def steps(self, steps: list[StepWindow]) -> list[StepBreakdown]:
        """Return the breakdown of each step."""
        outer, inner = self._by_name(self._is_outer), self._by_name(~self._is_outer)
        fillers = self._by_name(self._fills)
        times = _boundaries([*outer.values(), *inner.values(), self._bounds(steps)])
        lengths = np.diff(times)
        running = {name: _running(times, *found) for name, found in outer.items()}
        has_state = np.logical_or.reduce(list(running.values())) if running else np.zeros(len(lengths), np.bool_)
        for name, found in fillers.items():
            running[name] = running.get(name, False) | (_running(times, *found) & ~has_state)
        within = {name: _running(times, *found) for name, found in inner.items()}
        together = np.zeros(len(lengths), np.int64)
        for one in running.values():
            together += one
        together = np.maximum(together, 1)
        shared = {name: _Summed(times, lengths * one / together) for name, one in running.items()}
        order = sorted(shared, key=lambda name: (-shared[name].total, self._names[name]))
        inside = {name: self._inside(times, lengths, running[name], within) for name in order}
        extents = self._extents()
        return [self._step(step, order, shared, inside, extents) for step in steps]

    def _step(
        self,
        step: StepWindow,
        order: list[int],
        shared: dict[int, _Summed],
        inside: dict[int, dict[int, _Summed]],
        extents: tuple[Integers, Integers],
    ) -> StepBreakdown:
        end_ns = step.end_ns or step.start_ns
        start, end = self._window(step.start_ns, end_ns)
        lanes = max(1, int(np.count_nonzero((extents[0] < end) & (extents[1] > start))))
        phases = []
        for name in order:
            wall = shared[name].between(start, end) / lanes
            if wall <= 0:
                continue
            within = [(one.between(start, end) / lanes, self._names[nested]) for nested, one in inside[name].items()]
            longest = sorted((one for one in within if one[0] > 0), key=lambda one: (-one[0], one[1]))
            parts = [InsideTime(text, round(length)) for length, text in longest[:_MAX_INSIDE]]
            phases.append(PhaseTime(self._names[name], round(wall), parts))
        busy = sum(phase.wall_ns for phase in phases)
        idle = max(0, end_ns - step.start_ns - busy)
        return StepBreakdown(step.step, step.start_ns, end_ns, lanes, phases, idle)

    def idle(self, role: str, steps: list[StepWindow]) -> RoleIdle:
        """Return how idle the lanes were while the steps ran."""
        waiting = [name for name in np.unique(self._name).tolist() if is_waiting(self._names[name])]
        waits = np.isin(self._name, waiting)
        works = self._is_outer | self._fills
        busy = merged(self._start[works], self._end[works])
        # Waiting inside another state leaves the lane idle.
        idle = merged(self._start[waits], self._end[waits])
        times = _boundaries([busy, idle, self._bounds(steps)])
        is_working = _running(times, *busy) & ~_running(times, *idle)
        summed = _Summed(times, np.diff(times) * is_working)
        wall = np.zeros(len(self.lane_ids))
        total_ns = 0
        for step in steps:
            end_ns = step.end_ns or step.start_ns
            start, end = self._window(step.start_ns, end_ns)
            wall += summed.at(end) - summed.at(start)
            total_ns += end_ns - step.start_ns
        shares = np.clip(1 - wall / max(1, total_ns), 0.0, 1.0)
        worst = int(np.argmax(shares))
        return RoleIdle(role, len(shares), float(shares.mean()), self.lane_ids[worst], float(shares[worst]))

    def _by_name(self, which: NDArray[np.bool_]) -> dict[int, tuple[Integers, Integers]]:
        found = {}
        for name in np.unique(self._name[which]).tolist():
            rows = which & (self._name == name)
            found[name] = merged(self._start[rows], self._end[rows])
        return found

    def _bounds(self, steps: list[StepWindow]) -> tuple[Integers, Integers]:
        windows = [self._window(step.start_ns, step.end_ns or step.start_ns) for step in steps]
        return np.concatenate([start for start, _ in windows]), np.concatenate([end for _, end in windows])

    def _extents(self) -> tuple[Integers, Integers]:
        """Return when the first state of each lane began and its last one ended."""
        first = np.full(len(self.lane_ids), np.iinfo(np.int64).max)
        last = np.full(len(self.lane_ids), -1)
        np.minimum.at(first, self._place, self._start)
        np.maximum.at(last, self._place, self._end)
        return first, last

    def _inside(
        self,
        times: Integers,
        lengths: Integers,
        outer: NDArray[np.bool_],
        inner: dict[int, NDArray[np.bool_]],
    ) -> dict[int, _Summed]:
        both = {name: lengths * (outer & one) for name, one in inner.items()}
        largest = sorted(both, key=lambda name: -int(both[name].sum()))[:_MAX_INSIDE]
        return {name: _Summed(times, both[name]) for name in largest}


class _Summed:
    """Cumulative amounts at some times."""

    def __init__(self, times: Integers, amounts: NDArray[Any]) -> None:
        self._times = times
        self._sums = np.concatenate([[0.0], np.cumsum(amounts, dtype=np.float64)])
        self.total = float(self._sums[-1])

    def at(self, times: Integers) -> NDArray[np.float64]:
        """Return the amounts up to some of the times."""
        found: NDArray[np.float64] = self._sums[np.searchsorted(self._times, times)]
        return found

    def between(self, starts: Integers, ends: Integers) -> float:
        """Return the total amount within windows."""
        return float((self.at(ends) - self.at(starts)).sum())


def _boundaries(intervals: list[tuple[Integers, Integers]]) -> Integers:
    """Return all times at which an interval starts or ends, in order."""
    return np.unique(np.concatenate([part for pair in intervals for part in pair]))


def _running(times: Integers, starts: Integers, ends: Integers) -> NDArray[np.bool_]:
    """Return for each pair of neighboring times whether one of the disjoint intervals is running between them."""
    changes = np.zeros(len(times), np.int64)
    changes[np.searchsorted(times, starts)] += 1
    np.subtract.at(changes, np.searchsorted(times, ends), 1)
    running: NDArray[np.bool_] = np.cumsum(changes)[:-1] > 0
    return running
