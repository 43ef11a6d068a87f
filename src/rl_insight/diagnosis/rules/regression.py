"""Steps that take longer than steps of the same kind used to."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, pstdev

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import mad, median, quantile
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.rule import STEPS, Parameter, StepRule
from rl_insight.diagnosis.rules.rewards import reported_changes
from rl_insight.diagnosis.signals import Signal, fact, saving
from rl_insight.diagnosis.steps import ObservedStep
from rl_insight.schema.names import Severity
from rl_insight.words import ratio_text, seconds_text

BASELINE_STEPS = 30
LEAST_STEPS = 10
_SPREAD_STEPS = 200
_RARE_STEPS = 40
_NEIGHBORS = 3
_TIMES = (
    "generation_time", "update_time", "sync_time", "reward_time", "log_prob_time", "checkpoint_time",
    "validation_time", "data_time", "switch_time",
)  # fmt: skip
"""Metrics with the phases of a step, for runs without states."""


@dataclass(slots=True)
class _DurationWindow:
    """Durations of steps of one kind, or of one of their phases."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_STEPS))
    """Of the last good steps."""
    spread: deque[float] = field(default_factory=lambda: deque(maxlen=_SPREAD_STEPS))
    """The same over more steps, for their variance."""
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS.window))
    """Of the last steps, good or not."""

    @property
    def is_known(self) -> bool:
        return len(self.seconds) >= LEAST_STEPS

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.spread.append(seconds)

    def is_shifted(self, errors: float) -> bool:
        """Return whether the mean of the last steps is higher than the spread of the steps before explains."""
        # Excludes the longest 2%: one long pause says little about the usual spread.
        usual = sorted(self.spread)[: -max(1, len(self.spread) // 50)]
        return fmean(self.latest) - fmean(usual) > errors * pstdev(usual) / sqrt(len(self.latest))


@dataclass(slots=True)
class _Baseline:
    """The last good steps of one kind."""

    total: _DurationWindow = field(default_factory=_DurationWindow)
    phases: dict[str, _DurationWindow] = field(default_factory=dict)
    length: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_STEPS))
    held: deque[tuple[_Taken, bool]] = field(default_factory=deque)
    """Steps not yet known to be good: a slow step must not become its own baseline."""

    def note(self, taken: _Taken) -> None:
        self.total.latest.append(taken.seconds)
        for name, seconds in taken.phases.items():
            self.phases.setdefault(name, _DurationWindow()).latest.append(seconds)

    def add(self, taken: _Taken) -> None:
        self.total.add(taken.seconds)
        for name, seconds in taken.phases.items():
            self.phases[name].add(seconds)
        if taken.length is not None:
            self.length.append(taken.length)

    def learn(self, taken: _Taken, *, is_slow: bool) -> None:
        """Add a step; a step among several slow ones is not known to be good."""
        self.held.append((taken, is_slow))
        if len(self.held) < STEPS.window:
            return
        spikes = sum(slow for _, slow in self.held)
        earlier, _ = self.held.popleft()
        if spikes < STEPS.needed:
            self.add(earlier)


@dataclass(frozen=True, slots=True)
class _Taken:
    """The time of a step, excluding states that only some steps have."""

    seconds: float
    phases: Mapping[str, float]
    length: float | None


class StepRegression(StepRule):
    """Steps take longer than before."""

    threshold = (
        "A step, or one of its phases other than a wait, exceeds the median of the last 30 good steps of its kind by "
        "max({deviations} MAD, {share:.0%} of the step, {floor_s} s) in 3 of 5 steps, and the mean of the last 5 "
        "exceeds that of the steps before by {errors} standard errors. Longer responses are accounted for, as are "
        "states that only some steps have; if the slowest tenth of the steps takes {tail} times the median, only steps "
        "longer than all of them count. Only info if the run reported a change at that step, and for {patience_s} s if "
        "all work has slowed down alike."
    )
    remedy = "Compare the named state on the timeline before and after the first slow step."
    parameters = (
        Parameter("deviations", 4, "Median absolute deviations above the baseline"),
        Parameter("share", 0.15, "Share of the baseline"),
        Parameter("floor_s", 0.2, "Minimum excess, in seconds"),
        Parameter("errors", 4, "Standard errors between the last 5 steps and those before"),
        Parameter("tail", 1.3, "Slowest tenth of the steps relative to the median that counts as a heavy tail"),
        Parameter("patience_s", 300, "How long a busy machine may slow all work, in seconds"),
    )
    rank = 70

    def _begin(self) -> None:
        self._baselines: dict[tuple[int, frozenset[str]], _Baseline] = {}
        self._recent: deque[float] = deque(maxlen=STEPS.window)
        self._first: ObservedStep | None = None
        """Where the last steps became slow."""
        self._states: deque[frozenset[str]] = deque(maxlen=_RARE_STEPS)

    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        baseline = self._baselines.setdefault((step.generation, step.kind), _Baseline())
        taken = self._taken(model, step)
        baseline.note(taken)
        if not baseline.total.is_known:
            baseline.add(taken)
            return None
        longer = 1.0
        if taken.length is not None and len(baseline.length) >= LEAST_STEPS:
            longer = max(1.0, taken.length / max(median(baseline.length), 1e-9))
        phase = self._slow_phase(baseline, taken, longer)
        is_slow = phase is not None
        baseline.learn(taken, is_slow=is_slow)
        self._recent.append(taken.seconds if is_slow else 0.0)
        if phase is None:
            if not any(self._recent):
                self._first = None
            return []
        self._first = self._first or step
        return [self._signal(model, step, taken, baseline, phase)]

    def _taken(self, model: RunModel, step: ObservedStep) -> _Taken:
        tracks = [track for canonical in _TIMES for track in model.metrics.all(canonical)]
        reported = {track.name: seconds for track in tracks if (seconds := track.at(step.number)) is not None}
        phases = dict(step.phases) or reported
        before, near = self._states, list(self._states)[-_NEIGHBORS:]
        # For example a probe every tenth step: a step with it is of another kind.
        rare = [
            name
            for name in phases
            if 2 <= sum(name in one for one in before) <= len(before) / 2 and sum(name in one for one in near) <= 1
        ]
        before.append(frozenset(phases))
        seconds = max(0.0, step.seconds - sum(phases.pop(name) for name in rare))
        length = model.metrics.at("response_length", step.number)
        return _Taken(seconds, phases, model.metrics.at("tokens", step.number) if length is None else length)

    def _slow_phase(self, baseline: _Baseline, taken: _Taken, longer: float) -> str | None:
        """Return the phase that makes a step slow, or "" if no single one does; None if the step is not slow."""
        usual_s = median(baseline.total.seconds)
        excess = {
            name: seconds - longer * (median(baseline.phases[name].seconds) if baseline.phases[name].seconds else 0.0)
            for name, seconds in taken.phases.items()
        }
        largest = max(excess, key=excess.__getitem__, default="")
        if self._is_slow(baseline.total, taken.seconds, longer, usual_s):
            # The time may pass outside of all states, or be spread over them.
            return largest if largest and excess[largest] >= 0.3 * (taken.seconds - usual_s) else ""
        for name in sorted(excess, key=excess.__getitem__, reverse=True):
            # Generation varies and hides changes in the rest of a step, so each phase is compared separately.
            series = baseline.phases[name]
            is_work = state_kind(name) != "wait" and series.is_known
            if (
                is_work
                and self._is_longer(baseline.total, taken.seconds, excess[name], usual_s)
                and self._is_slow(series, taken.phases[name], longer, usual_s)
            ):
                return name
        return None

    def _is_longer(self, total: _DurationWindow, seconds: float, excess_s: float, usual_s: float) -> bool:
        """Return whether a longer phase made its step longer."""
        by_s = seconds - usual_s
        # A shorter wait may make up for part of it, if samples are generated at the same time.
        is_plain = by_s > max(self["share"] * usual_s, self["floor_s"]) and total.is_shifted(self["errors"])
        return is_plain or by_s > 0.5 * excess_s

    def _is_slow(self, series: _DurationWindow, seconds: float, longer: float, step_s: float) -> bool:
        usual_s = median(series.seconds)
        allowed_s = max(
            self["deviations"] * mad(series.seconds, usual_s),
            self["share"] * usual_s,
            self["share"] * step_s,
            self["floor_s"],
        )
        if quantile(series.seconds, 0.9) > self["tail"] * usual_s:
            # If long steps are common, as with heavy-tailed responses, only a step longer than all of them is slow.
            allowed_s = max(allowed_s, 1.1 * max(series.seconds) - usual_s)
        return seconds > usual_s * longer + allowed_s and series.is_shifted(self["errors"])

    def _signal(self, model: RunModel, step: ObservedStep, taken: _Taken, baseline: _Baseline, phase: str) -> Signal:
        usual_s = median(baseline.total.seconds)
        now_s = median([seconds for seconds in self._recent if seconds])
        before = baseline.phases[phase].seconds if phase else ()
        excess_s = taken.phases[phase] - (median(before) if before else 0.0) if phase else 0.0
        of_it = f", mostly because of {phase} (+{seconds_text(max(0.0, excess_s))})" if phase else ""
        severity, why = self._judge(model, step, now_s / max(usual_s, 1e-9))
        return Signal(
            {"phase": phase} if phase else {},
            f"Steps take {seconds_text(now_s)} instead of {seconds_text(usual_s)}{of_it}",
            f"Compared with the median of the last {len(baseline.total.seconds)} good steps of the same kind.{why}"
            f"{step.measured_on(phase)}",
            severity,
            key=("steps", *sorted(step.kind)),
            impact=saving(now_s - usual_s, now_s),
            metrics=["step_time"],
            evidence=[
                fact("step time", now_s, "s", f"baseline {seconds_text(usual_s)}"),
                fact("deviation of the baseline", mad(baseline.total.seconds, usual_s), "s"),
            ],
        )

    def _judge(self, model: RunModel, step: ObservedStep, ratio: float) -> tuple[Severity, str]:
        """Return the severity and the reason: intentional changes and temporary slowdowns do not deserve a warning."""
        first = self._first or step
        if reported := reported_changes(model, first.number):
            return "info", f" The run reported a change there: {reported[0]}."
        slowdown = model.pace.slowdown(first.start_ns, step.end_ns)
        lasted_s = (step.end_ns - first.start_ns) / SECOND
        if slowdown - 1.0 > 0.5 * (ratio - 1.0):
            why = f" All work takes {ratio_text(slowdown)} as long as usual: the machine is slow, not one phase."
            return ("warning" if lasted_s > self["patience_s"] else "info"), why
        return "warning", ""
