"""What each process of a role did in each step, for comparing it with its peers."""

from __future__ import annotations

from dataclasses import dataclass, field

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.robust import Interval, length_s, union
from rl_insight.diagnosis.rows import SECOND, ProcessRow, SpanRow

_LATE_NS = 30 * SECOND
_KEPT = 40


@dataclass(slots=True)
class RoleStep:
    """One step of one role: the seconds of each state by unit."""

    role: str
    step: int
    start_ns: int
    end_ns: int
    intervals: dict[str, dict[int, list[Interval]]] = field(default_factory=dict)
    """State name to lane to its intervals."""
    by_lane: bool = False
    """Units are lanes: a single process shows all of them."""
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    """State name to unit, a process or a lane, to seconds; filled when the step is settled."""


class RoleBook:
    """The steps of every role, by the number that each process gives its own work."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._open: dict[str, dict[int, RoleStep]] = {}
        self._latest: dict[int, int] = {}
        """Lane to the highest step that it has begun."""
        self.settled: list[RoleStep] = []
        """Those that were settled in this moment."""
        self.recent: dict[str, list[RoleStep]] = {}
        """By role, the last ones in order."""

    def add(self, row: SpanRow, process: ProcessRow, step: int) -> None:
        """Take a state that ended in a step."""
        steps = self._open.get(process.role)
        if steps is None:
            steps = self._open[process.role] = {}
        found = steps.get(step)
        if found is None:
            done = self.recent.get(process.role)
            if done and step <= done[-1].step and row.start_ns < done[-1].end_ns + _LATE_NS:
                return
            found = steps[step] = RoleStep(process.role, step, row.start_ns, row.end_ns)
        end_ns, start_ns, _, lane_id, name = row[:5]
        if start_ns < found.start_ns:  # noqa: PLR1730  # min() takes longer, and this is called for every state
            found.start_ns = start_ns
        if end_ns > found.end_ns:  # noqa: PLR1730
            found.end_ns = end_ns
        lanes = found.intervals.get(name)
        if lanes is None:
            lanes = found.intervals[name] = {}
        intervals = lanes.get(lane_id)
        if intervals is None:
            lanes[lane_id] = [(start_ns, end_ns)]
        else:
            intervals.append((start_ns, end_ns))
        if self._latest.get(lane_id, step - 1) < step:
            self._latest[lane_id] = step

    def has_left(self, process: int, role: str, step: int | None, name: str) -> bool:
        """Return whether a process has already ended a state in a step that is not settled yet."""
        found = None if step is None else self._open.get(role, {}).get(step)
        lanes = {} if found is None else found.intervals.get(name, {})
        return any(self._feed.lanes[lane][0] == process for lane in lanes)

    def settle(self, as_of_ns: int) -> None:
        """Close the steps that no process of the role works on any more."""
        self.settled = []
        for role, steps in self._open.items():
            for number in sorted(steps):
                step = steps[number]
                lanes = {lane for lanes in step.intervals.values() for lane in lanes}
                has_passed = all(self._latest[lane] > number for lane in lanes)
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
        lanes = self._feed.lanes
        owners = {lanes[lane][0] for by_lane in step.intervals.values() for lane in by_lane}
        step.by_lane = len(owners) == 1
        for name, by_lane in step.intervals.items():
            units: dict[int, list[Interval]] = {}
            for lane, intervals in by_lane.items():
                units.setdefault(lane if step.by_lane else lanes[lane][0], []).extend(intervals)
            step.seconds[name] = {unit: length_s(union(intervals)) for unit, intervals in units.items()}
        step.intervals = {}
