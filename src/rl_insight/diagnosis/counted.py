"""The steps of a run whose spans carry no step, from its step counter; `store.queries.step_counters` defines them.

Such a step is known only when it has finished. Its records are held back until then.
"""

from __future__ import annotations

from collections import deque
from math import isfinite

import numpy as np

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.leaders import GenerationBook
from rl_insight.diagnosis.role_steps import RoleBook
from rl_insight.diagnosis.rows import NEVER, SECOND, SampleRow, SpanRow
from rl_insight.diagnosis.span_table import SpanTable, joined
from rl_insight.diagnosis.steps import ObservedStep, StepBook
from rl_insight.diagnosis.tracks import Metrics
from rl_insight.metrics import GAUGE
from rl_insight.metrics.canonical import canonical_name
from rl_insight.store.queries.step_counters import STEP_COUNTERS, step_counter
from rl_insight.store.queries.step_definition import TOGETHER_NS, by_leadership, first_start_ns
from rl_insight.store.queries.steps import StepWindow, counted_step

_SETTLED_NS = SECOND
_MAX_HELD = 200_000
_KEPT_WINDOWS = 16
_SPECIAL = {"checkpoint_time": "checkpoint", "validation_time": "validation", "held_out": "validation"}
"""Metrics that show the kind of a step."""


class CountedSteps:
    """Assigns spans and samples without a step to steps, by the run's step counter."""

    def __init__(self, feed: Feed, metrics: Metrics, roles: RoleBook, generations: GenerationBook) -> None:
        self._feed = feed
        self._metrics = metrics
        self._roles = roles
        self._generations = generations
        self._samples: dict[int, list[SampleRow]] = {}
        self._counter = len(STEP_COUNTERS)
        """The index of the run's counter in `STEP_COUNTERS`: the first one that it has."""
        self._values: dict[int, int] = {}
        self._marked_ns: dict[int, int] = {}
        """When each process's counter last changed."""
        self._held: deque[SpanTable] = deque()
        """Spans without a step, ordered by their ends."""
        self._open_starts: list[int] = []
        self._windows: deque[StepWindow] = deque(maxlen=_KEPT_WINDOWS)
        self._lead = ""
        """The role of the process that counts."""
        self._state_roles: set[str] = set()

    @property
    def is_used(self) -> bool:
        """Whether a counter has reported a step."""
        return bool(self._windows)

    @property
    def lead(self) -> str | None:
        """The role whose states show where the time of a step went; None before there are any."""
        return by_leadership(self._state_roles, self._lead)[0] if self._state_roles else None

    def add_sample(self, sample: SampleRow, process: int) -> None:
        """Add a sample that carries no step."""
        self._samples.setdefault(process, []).append(sample)

    def hold(self, spans: SpanTable) -> None:
        """Add spans that carry no step; one that began in a finished step belongs to that step."""
        if self._windows:
            is_late = spans.start_ns < (self._windows[-1].end_ns or 0)
            self._add_late(spans.take(is_late & spans.is_state))
            spans = spans.take(~is_late)
        if spans.size:
            self._held.append(spans)
            self._forget()

    def _add_late(self, states: SpanTable) -> None:
        steps = [counted_step(self._windows, start_ns) for start_ns in states.start_ns.tolist()]
        is_known = np.array([step is not None for step in steps], np.bool_)
        self._roles.add(states.take(is_known), np.array([step for step in steps if step is not None], np.int64))

    def _forget(self) -> None:
        """Drop the oldest spans above the limit."""
        excess = sum(spans.size for spans in self._held) - _MAX_HELD
        while excess > 0:
            oldest = self._held.popleft()
            if oldest.size > excess:
                self._held.appendleft(oldest.take(slice(excess, None)))
            excess -= oldest.size

    def _take_held(self, start_ns: int, end_ns: int) -> SpanTable | None:
        """Return the spans that began in a window, and keep later ones."""
        if not self._held:
            return None
        held = joined(list(self._held))
        later = held.take(held.start_ns >= end_ns)
        self._held = deque([later] if later.size else [])
        return held.take((start_ns <= held.start_ns) & (held.start_ns < end_ns))

    def advance(self, as_of_ns: int, steps: StepBook | None, open_spans: list[SpanRow]) -> list[ObservedStep]:
        """Process the records up to a time; returns the finished steps, which are added to `steps`.

        Without `steps`, only samples are assigned: the spans of the run carry their steps.
        """
        found = []
        self._open_starts = [row.start_ns for row in open_spans]
        for process, waiting in self._samples.items():
            ready = [sample for sample in waiting if sample.time_ns + _SETTLED_NS <= as_of_ns]
            self._samples[process] = waiting[len(ready) :]
            for cluster in _clusters(ready):
                counted = self._note(cluster, process)
                step = None if counted is None or steps is None else self._close(counted, cluster, process, steps)
                if step is not None:
                    found.append(step)
        return found

    def _note(self, cluster: list[SampleRow], process: int) -> SampleRow | None:
        """Assign the samples of one call to their step; returns the counter's sample, if it is among them."""
        counted = None
        for sample in cluster:
            place = self._place(sample)
            if place is not None and place <= self._counter:
                self._counter, counted = place, sample
        if counted is not None:
            self._values[process] = int(counted.value)
        for sample in cluster:
            series = self._feed.series[sample.series_id]
            if series.kind == GAUGE.name:
                self._metrics.add(series.name, self._values.get(process), sample.time_ns, sample.value, process)
        return counted

    def _place(self, sample: SampleRow) -> int | None:
        series = self._feed.series[sample.series_id]
        name = step_counter(series.name) if series.kind == GAUGE.name and isfinite(sample.value) else None
        return None if name is None else STEP_COUNTERS.index(name)

    def _close(
        self, counted: SampleRow, cluster: list[SampleRow], process: int, steps: StepBook
    ) -> ObservedStep | None:
        number, end_ns = int(counted.value), counted.time_ns
        start_ns = self._marked_ns.get(process) or self._first_start_ns(end_ns, cluster)
        self._marked_ns[process] = end_ns
        is_known = bool(self._windows) and self._windows[-1].step == number  # by the counter of another process
        if is_known or start_ns >= end_ns:
            return None
        self._windows.append(StepWindow(number, start_ns, end_ns))
        self._lead = self._feed.processes[process].role
        spans = self._give_step(number, self._take_held(start_ns, end_ns))
        names = {canonical_name(self._feed.series[sample.series_id].name) or "" for sample in cluster}
        kinds = frozenset(_SPECIAL[name] for name in names & _SPECIAL.keys())
        generation = self._generations.of_process(process, start_ns, end_ns)
        return steps.add(number, start_ns, end_ns, kinds, generation, spans)

    def _give_step(self, number: int, spans: SpanTable | None) -> SpanTable | None:
        """Assign spans to a step; returns those of the leading role."""
        if spans is None:
            return None
        states = spans.take(spans.is_state)
        self._state_roles.update(self._feed.roles[place] for place in np.unique(self._feed.owners(states)[1]).tolist())
        self._roles.add(states, np.full(states.size, number))
        lead = self.lead
        if lead is None:
            return None
        return spans.take(self._feed.owners(spans)[1] == self._feed.roles.index(lead))

    def _first_start_ns(self, end_ns: int, cluster: list[SampleRow]) -> int:
        """Return when the first step of a process began."""
        times = [
            (abs(sample.time_ns - end_ns), sample.value)
            for sample in cluster
            if canonical_name(self._feed.series[sample.series_id].name) == "step_time"
            and isfinite(sample.value)
            and sample.value > 0
            and abs(sample.time_ns - end_ns) < TOGETHER_NS
        ]
        after_ns = (self._windows[-1].end_ns or 0) if self._windows and not times else 0
        starts = np.concatenate([np.array(self._open_starts, np.int64), *(spans.start_ns for spans in self._held)])
        ends = np.concatenate([np.full(len(self._open_starts), NEVER), *(spans.end_ns for spans in self._held)])
        is_later = starts > after_ns
        return first_start_ns(end_ns, min(times)[1] if times else None, starts[is_later], ends[is_later])


def _clusters(samples: list[SampleRow]) -> list[list[SampleRow]]:
    """Return groups of samples that were recorded together, in order."""
    found: list[list[SampleRow]] = []
    for sample in sorted(samples, key=lambda sample: sample.time_ns):
        if found and sample.time_ns - found[-1][-1].time_ns < TOGETHER_NS:
            found[-1].append(sample)
        else:
            found.append([sample])
    return found
