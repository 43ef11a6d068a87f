"""The steps of a run, as its leading role defines them: their times, kinds, and where the time went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, baseline, union_seconds
from rl_insight.diagnosis.rows import NEVER, SECOND
from rl_insight.diagnosis.span_table import NO_STEP, STATE_INTERVAL, SpanTable, StateColumns, state_columns
from rl_insight.store.queries.intervals import by_group

WARM_UP_STEPS = 3
"""Compilation, CUDA graphs and caches make the first steps after a start slow."""
SETTLE_NS = 3 * SECOND
"""How long the last records of a step may take to arrive before it is evaluated."""
_SPECIAL = frozenset({"checkpoint", "validation", "sync"})
_KEPT = 400

Key = tuple[int, int]
"""The generation of the processes that recorded it, and the step's number."""


@dataclass(slots=True)
class ObservedStep:
    """A finished step, from its start to the start of the next one; aligned nanoseconds."""

    number: int
    start_ns: int
    end_ns: int
    kind: frozenset[str]
    """Which of checkpoint, validation and weight sync it had: only steps of the same kind are compared."""
    is_warm_up: bool
    generation: int
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds of each outermost state of the leading role: the union of intervals on its median lane."""
    occasional: frozenset[str] = frozenset()
    """States that few lanes enter, such as a checkpoint on rank 0: their seconds are those of the longest."""
    lanes: int = 0
    """The number of lanes of the leading role with states."""
    covered_s: float = 0.0
    """Seconds that the lanes of the leading role spent in any state."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end_ns - self.start_ns) / SECOND

    def measured_on(self, name: str) -> str:
        """Return a sentence on the lane that the seconds of a state are from; empty for metrics, and for one lane.

        The breakdown of a step shows the average lane: a rule must not be swayed by one slow lane.
        """
        if name not in self.phases or self.lanes < 2:
            return ""
        lane = "lane where it takes longest" if name in self.occasional else "median lane"
        return f" The time is that of the {lane}; the breakdown of a step shows the average of {self.lanes} lanes."

    def seconds_of(self, *kinds: str) -> float:
        """Return the seconds of all states of some kinds."""
        return sum(seconds for name, seconds in self.phases.items() if state_kind(name) in kinds)


@dataclass(slots=True)
class _Draft:
    number: int
    generation: int
    start_ns: int
    kinds: set[str] = field(default_factory=set)
    states: list[StateColumns] = field(default_factory=list)


class StepBook:
    """Collects the spans of the leading role into steps.

    Args:
        names: Span names, by number; the list may grow.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.closed: list[ObservedStep] = []
        self._drafts: dict[Key, _Draft] = {}
        self._done: set[Key] = set()
        self._in_generation: dict[int, int] = {}
        self._last_ns: dict[int, int] = {}
        """By generation: the end of the last span of any of its steps."""
        self._marked: tuple[Key, int] | None = None
        """The step that metrics began last, and when; only in runs whose spans carry no steps."""
        self._restarted_ns: int | None = None
        self._since_restart = 0
        self.total = 0
        """The number of closed steps, including those no longer kept."""

    @property
    def current(self) -> int | None:
        """The number of the running step, or of the last one."""
        if self._drafts:
            return max(self._drafts.values(), key=lambda draft: draft.start_ns).number
        if self._marked is not None:
            return self._marked[0][1]
        return self.closed[-1].number if self.closed else None

    @property
    def current_start_ns(self) -> int | None:
        """When the running step began, or the last one ended."""
        if self._drafts:
            return max(draft.start_ns for draft in self._drafts.values())
        if self._marked is not None:
            return self._marked[1]
        return self.closed[-1].end_ns if self.closed else None

    def usual_seconds(self) -> float | None:
        """Return how long steps currently take."""
        return baseline([step.seconds for step in self.closed[-10:] if not step.is_warm_up], 1)

    def note_open(self, start_ns: int, number: int, generation: int) -> None:
        """Record that a span of the leading role has begun."""
        key = (generation, number)
        self._last_ns[generation] = max(self._last_ns.get(generation, start_ns), start_ns)
        if key in self._done:
            return
        draft = self._drafts.setdefault(key, _Draft(number, generation, start_ns))
        draft.start_ns = min(draft.start_ns, start_ns)

    def note_restart(self, time_ns: int | None) -> None:
        """Record when a process of the leading role was last replaced: the next steps warm it up."""
        if time_ns != self._restarted_ns:
            self._restarted_ns, self._since_restart = time_ns, 0

    def note(self, spans: SpanTable, generations: Column, asked: Column) -> Column:
        """Add ended spans of the leading role, ordered by their ends, and the generation of each.

        Returns:
            For each number in `asked`, the step that was running after that many of the spans.
        """
        before = {key: draft.start_ns for key, draft in self._drafts.items()}
        begun: dict[Key, tuple[Column, Column]] = {}
        for key, places in self._by_step(spans, generations):
            self.note_open(int(spans.start_ns[places[0]]), key[1], key[0])
            starts = np.minimum.accumulate(spans.start_ns[places]).clip(None, before.get(key, NEVER))
            begun[key] = (places, starts)
            self._drafts[key].start_ns = int(starts[-1])
            self._add(self._drafts[key], spans.take(places))
        stepless = np.flatnonzero(spans.step == NO_STEP)
        drafts = list(self._drafts.values())
        if stepless.size and drafts:
            running = self._running(before, begun, stepless)
            for place, found in by_group(running[running >= 0]):
                self._add(drafts[place], spans.take(stepless[running >= 0][found]))
        if not asked.size:
            return asked
        otherwise = self.closed[-1].number if self.closed else NO_STEP
        return np.array([*(draft.number for draft in drafts), otherwise])[self._running(before, begun, asked)]

    def _by_step(self, spans: SpanTable, generations: Column) -> list[tuple[Key, Column]]:
        """Return the places of the spans of each step that is not closed, ordered by the first of them."""
        numbered = np.flatnonzero(spans.step != NO_STEP)
        found = []
        for generation, some in by_group(generations[numbered]):
            last_ns = int(spans.end_ns[numbered[some]].max())
            self._last_ns[generation] = max(self._last_ns.get(generation, last_ns), last_ns)
            for number, places in by_group(spans.step[numbered[some]]):
                if (generation, number) not in self._done:
                    found.append(((generation, number), numbered[some[places]]))
        return sorted(found, key=lambda one: int(one[1][0]))

    def _running(self, before: Mapping[Key, int], begun: Mapping[Key, tuple[Column, Column]], counts: Column) -> Column:
        """Return the index of the draft that began last after that many spans; -1 if there was none."""
        latest, place_of = np.full(counts.size, -NEVER), np.full(counts.size, -1)
        for place, key in enumerate(self._drafts):
            start_ns = np.full(counts.size, before.get(key, -NEVER))
            if key in begun:
                places, starts = begun[key]
                taken = np.searchsorted(places, counts)
                start_ns = np.where(taken > 0, starts[taken - 1], start_ns)
            is_later = start_ns > latest
            latest[is_later], place_of[is_later] = start_ns[is_later], place
        return place_of

    def _add(self, draft: _Draft, spans: SpanTable) -> None:
        kinds = {state_kind(self._names[number]) for number in np.flatnonzero(np.bincount(spans.name_id)).tolist()}
        draft.kinds |= kinds & _SPECIAL
        draft.states.append(state_columns(spans, spans.segment == STATE_INTERVAL))

    def close(self, as_of_ns: int, *, has_ended: bool) -> list[ObservedStep]:
        """Return the steps that have finished and settled, in order.

        A crash also ends the last step, for queries at once. Here it ends when the run resumes: until then the
        processes may only have lost their connection, and a step cannot be taken back.
        """
        ordered = sorted(self._drafts.values(), key=lambda draft: draft.start_ns)
        found = []
        for place, draft in enumerate(ordered):
            following = ordered[place + 1] if place + 1 < len(ordered) else None
            is_settled = has_ended if following is None else as_of_ns >= following.start_ns + SETTLE_NS
            if not is_settled:
                break
            is_followed = following is not None and following.generation == draft.generation
            end_ns = following.start_ns if following is not None and is_followed else self._last_ns[draft.generation]
            key = (draft.generation, draft.number)
            if is_followed or end_ns > draft.start_ns:
                self._done.add(key)
                del self._drafts[key]
                found.append(self._finish(draft, end_ns))
            elif following is not None:
                del self._drafts[key]  # a process crashed as it began the step
        return found

    def _finish(self, draft: _Draft, end_ns: int) -> ObservedStep:
        place = self._in_generation.get(draft.generation, 0)
        self._in_generation[draft.generation] = place + 1
        is_warm_up = place < WARM_UP_STEPS
        if self._restarted_ns is not None and end_ns > self._restarted_ns:
            is_warm_up = is_warm_up or self._since_restart < WARM_UP_STEPS
            self._since_restart += 1
        step = ObservedStep(draft.number, draft.start_ns, end_ns, frozenset(draft.kinds), is_warm_up, draft.generation)
        self._break_down(step, draft.states)
        self.closed.append(step)
        self.total += 1
        if len(self.closed) > 2 * _KEPT:
            del self.closed[:_KEPT]
        return step

    def add(
        self, number: int, start_ns: int, end_ns: int, kinds: frozenset[str], generation: int, spans: SpanTable | None
    ) -> ObservedStep:
        """Add a finished step, with the spans of the leading role that began in it."""
        draft = _Draft(number, generation, start_ns, set(kinds))
        if spans is not None and spans.size:
            self._add(draft, spans)
        return self._finish(draft, end_ns)

    def mark(self, number: int, time_ns: int, generation: int) -> ObservedStep | None:
        """Add a metric of a step, in runs where only metrics carry steps; returns the step before it, if it ends that.

        Metrics of a step that has ended, as from a rank that lags, begin nothing.
        """
        key, before = (generation, number), self._marked
        if key in self._done or (before is not None and before[0] == key):
            return None
        self._marked = (key, time_ns)
        if before is None:
            return None
        (last_generation, last_number), start_ns = before
        self._done.add(before[0])
        if time_ns <= start_ns or generation != last_generation:
            return None
        return self.add(last_number, start_ns, time_ns, frozenset(), generation, None)

    def _break_down(self, step: ObservedStep, drafted: Sequence[StateColumns]) -> None:
        """Set the seconds of each state and of all together, on a typical lane."""
        states = [some for some in drafted if some.name_id.size]
        if not states:
            return
        names, lanes, starts, ends = map(np.concatenate, zip(*states, strict=True))
        starts = starts.clip(step.start_ns)
        ends = np.maximum(ends.clip(None, step.end_ns), starts)
        _, _, covered = union_seconds((np.zeros_like(lanes), lanes), starts, ends)
        of_pairs, _, seconds = union_seconds((names, lanes), starts, ends)
        occasional = []
        for number, places in by_group(of_pairs):
            # A state that most lanes never enter still takes part of the step.
            is_usual = 2 * places.size >= covered.size
            step.phases[self._names[number]] = float(np.median(seconds[places]) if is_usual else seconds[places].max())
            occasional += [] if is_usual else [self._names[number]]
        step.occasional, step.lanes, step.covered_s = frozenset(occasional), int(covered.size), float(covered.max())
