"""The steps of a run as its leading role goes through them: when each was, of which kind, and where its time went."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Interval, clipped, length_s, median, union
from rl_insight.diagnosis.rows import NEVER, SECOND, ProcessRow, SpanRow

WARM_UP_STEPS = 3
"""Compilation, CUDA graphs and caches make the first steps after a start slow."""
SETTLE_NS = 3 * SECOND
"""A step is looked at when its last records have had this long to arrive."""
_SPECIAL = frozenset({"checkpoint", "validation", "sync"})
_KEPT = 400

Key = tuple[int, int]
"""The generation of the leading process, and the step's number."""


@dataclass(slots=True)
class Step:
    """A step that is over, from its start to the start of the next one; aligned nanoseconds."""

    number: int
    start_ns: int
    end_ns: int
    kind: frozenset[str]
    """Which of checkpoint, validation and weight sync it had: only steps of one kind can be compared."""
    is_warm_up: bool
    generation: int
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each outermost state of the leading role: the median over its lanes of the union of intervals."""
    covered_s: float = 0.0
    """Seconds in which the lanes of the leading role were in any state."""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.end_ns - self.start_ns) / SECOND

    def seconds_of(self, *kinds: str) -> float:
        """Return the seconds of all states of some kinds."""
        return sum(seconds for name, seconds in self.phases.items() if state_kind(name) in kinds)


@dataclass(slots=True)
class _Draft:
    number: int
    generation: int
    start_ns: int
    end_ns: int
    kinds: set[str] = field(default_factory=set)
    lanes: dict[int, dict[str, list[Interval]]] = field(default_factory=dict)


class StepBook:
    """Collects the spans of the leading role into steps."""

    def __init__(self) -> None:
        self.closed: list[Step] = []
        self._drafts: dict[Key, _Draft] = {}
        self._done: set[Key] = set()
        self._in_generation: dict[int, int] = {}
        self._last_mark: tuple[int, int] | None = None
        self.total = 0
        """How many steps were closed, also those that are no longer kept."""

    @property
    def current(self) -> int | None:
        """The number of the step that runs, or of the last one."""
        if self._drafts:
            return max(self._drafts.values(), key=lambda draft: draft.start_ns).number
        return self.closed[-1].number if self.closed else None

    @property
    def current_start_ns(self) -> int | None:
        """When the running step began, or the last one ended."""
        if self._drafts:
            return max(draft.start_ns for draft in self._drafts.values())
        return self.closed[-1].end_ns if self.closed else None

    def note(self, row: SpanRow, process: ProcessRow) -> None:
        """Take a span of the leading role, also one that is open."""
        number = row.step
        if number is None:
            self._note_without_number(row)
            return
        key = (process.generation, number)
        if key in self._done:
            return
        draft = self._drafts.get(key)
        if draft is None:
            draft = self._drafts[key] = _Draft(number, process.generation, row.start_ns, row.start_ns)
        draft.start_ns = min(draft.start_ns, row.start_ns)
        if row.end_ns != NEVER:
            self._add(draft, row)

    def _note_without_number(self, row: SpanRow) -> None:
        if self._drafts and row.end_ns != NEVER:
            self._add(max(self._drafts.values(), key=lambda draft: draft.start_ns), row)

    def _add(self, draft: _Draft, row: SpanRow) -> None:
        draft.end_ns = max(draft.end_ns, row.end_ns)
        kind = state_kind(row.name)
        if kind in _SPECIAL:
            draft.kinds.add(kind)
        if row.segment == "state_interval":
            names = draft.lanes.setdefault(row.lane_id, {})
            names.setdefault(row.name, []).append((row.start_ns, row.end_ns))

    def close(self, as_of_ns: int, *, has_ended: bool) -> list[Step]:
        """Return the steps that are over and settled, in order."""
        ordered = sorted(self._drafts.values(), key=lambda draft: draft.start_ns)
        found = []
        for place, draft in enumerate(ordered):
            following = ordered[place + 1] if place + 1 < len(ordered) else None
            if following is not None and as_of_ns >= following.start_ns + SETTLE_NS:
                found.append(self._close(draft, following.start_ns))
            elif following is None and has_ended and draft.end_ns > draft.start_ns:
                found.append(self._close(draft, draft.end_ns))
            else:
                break
        return found

    def _close(self, draft: _Draft, end_ns: int) -> Step:
        del self._drafts[draft.generation, draft.number]
        self._done.add((draft.generation, draft.number))
        return self._summed_up(draft, end_ns)

    def _summed_up(self, draft: _Draft, end_ns: int) -> Step:
        step = self._finished(draft.number, draft.start_ns, end_ns, frozenset(draft.kinds), draft.generation)
        step.phases, step.covered_s = _breakdown(draft, end_ns)
        return step

    def add(
        self, number: int, start_ns: int, end_ns: int, kinds: frozenset[str], generation: int, rows: Iterable[SpanRow]
    ) -> Step:
        """Take a step that is over as a whole, with the spans of the leading role that began in it."""
        draft = _Draft(number, generation, start_ns, start_ns, set(kinds))
        for row in rows:
            self._add(draft, row)
        return self._summed_up(draft, end_ns)

    def _finished(self, number: int, start_ns: int, end_ns: int, kind: frozenset[str], generation: int) -> Step:
        place = self._in_generation.get(generation, 0)
        self._in_generation[generation] = place + 1
        step = Step(number, start_ns, end_ns, kind, place < WARM_UP_STEPS, generation)
        self.closed.append(step)
        self.total += 1
        if len(self.closed) > 2 * _KEPT:
            del self.closed[:_KEPT]
        return step

    def mark(self, number: int, time_ns: int, kinds: frozenset[str], generation: int) -> Step | None:
        """Take the first metric of a step, for runs whose steps are seen in metrics only; returns the step it ends."""
        before = self._last_mark
        if before is not None and before[0] == number:
            return None
        self._last_mark = (number, time_ns)
        if before is None or time_ns <= before[1]:
            return None
        return self._finished(number, before[1], time_ns, kinds, generation)


def _breakdown(draft: _Draft, end_ns: int) -> tuple[dict[str, float], float]:
    """Return the seconds of each state, and of all together, on a usual lane."""
    by_name: dict[str, list[float]] = {}
    covered = []
    for names in draft.lanes.values():
        every: list[Interval] = []
        for name, intervals in names.items():
            inside = union(clipped(intervals, draft.start_ns, end_ns))
            by_name.setdefault(name, []).append(length_s(inside))
            every += inside
        covered.append(length_s(union(every)))
    lanes = len(draft.lanes)
    # A state that most lanes never enter, such as a checkpoint of rank 0, still takes the time of the step.
    phases = {name: median(seconds) if 2 * len(seconds) >= lanes else max(seconds) for name, seconds in by_name.items()}
    return phases, max(covered, default=0.0)
