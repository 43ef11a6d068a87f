"""Steps that take longer than the same kind of step took before."""

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
from rl_insight.diagnosis.rule import STEPS, Parameter, Severity, Signal, StepRule, fact
from rl_insight.diagnosis.rules.rewards import told_changes
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import ratio_text, seconds_text

BASELINE_STEPS = 30
LEAST_STEPS = 10
_SPREAD_STEPS = 200
_RARE_STEPS = 40
_NEIGHBORS = 3
_TIMES = (
    "generation_time", "update_time", "sync_time", "reward_time", "log_prob_time", "checkpoint_time",
    "validation_time", "data_time", "switch_time",
)  # fmt: skip
"""Metrics that tell the phases of a step, for runs without states."""


@dataclass(slots=True)
class _Series:
    """How long steps of one kind, or one phase of them, took."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_STEPS))
    """The last good ones."""
    spread: deque[float] = field(default_factory=lambda: deque(maxlen=_SPREAD_STEPS))
    """The same further back: how much they vary shows in many of them."""
    latest: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS.window))
    """The last ones, good or not."""

    @property
    def is_known(self) -> bool:
        return len(self.seconds) >= LEAST_STEPS

    def add(self, seconds: float) -> None:
        self.seconds.append(seconds)
        self.spread.append(seconds)

    def is_shifted(self, errors: float) -> bool:
        """Return whether the mean of the last steps is too high for chance, by the spread of the steps before."""
        # Without the longest of fifty: one long pause says little about the usual ones.
        usual = sorted(self.spread)[: -max(1, len(self.spread) // 50)]
        return fmean(self.latest) - fmean(usual) > errors * pstdev(usual) / sqrt(len(self.latest))


@dataclass(slots=True)
class _Baseline:
    """The last good steps of one kind."""

    total: _Series = field(default_factory=_Series)
    phases: dict[str, _Series] = field(default_factory=dict)
    length: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_STEPS))
    held: deque[tuple[_Taken, bool]] = field(default_factory=deque)
    """Steps that are not known to be good yet: a slow step must not become its own baseline."""

    def note(self, taken: _Taken) -> None:
        self.total.latest.append(taken.seconds)
        for name, seconds in taken.phases.items():
            self.phases.setdefault(name, _Series()).latest.append(seconds)

    def add(self, taken: _Taken) -> None:
        self.total.add(taken.seconds)
        for name, seconds in taken.phases.items():
            self.phases[name].add(seconds)
        if taken.length is not None:
            self.length.append(taken.length)

    def learn(self, taken: _Taken, *, is_slow: bool) -> None:
        """Add a step; near several slow ones none is known to be good."""
        self.held.append((taken, is_slow))
        if len(self.held) < STEPS.window:
            return
        spikes = sum(slow for _, slow in self.held)
        earlier, _ = self.held.popleft()
        if spikes < STEPS.needed:
            self.add(earlier)


@dataclass(frozen=True, slots=True)
class _Taken:
    """What a step took, without what only some steps have."""

    seconds: float
    phases: Mapping[str, float]
    length: float | None


class StepRegression(StepRule):
    """Steps take longer than before."""

    name = "step_regression"
    threshold = (
        "A step, or a phase of it that is not a wait, exceeds the median of the last 30 good steps of its kind by "
        "max({deviations} MAD, {share} of the step, {floor_s} s), 3 of 5, and the mean of the last 5 that of the steps "
        "before by {errors} standard errors. Longer responses are allowed for, and so are states that only some steps "
        "have; where one step in ten takes {tail} times the median, only steps longer than all of them count. Only "
        "information where the run told of a change at that step, and for {patience_s} s where all work has slowed "
        "alike."
    )
    needs = "steps"
    remedy = "Look at the named state on the timeline before and after the first slow step."
    parameters = (
        Parameter("deviations", 4, "Median absolute deviations above the baseline"),
        Parameter("share", 0.15, "Share of the baseline"),
        Parameter("floor_s", 0.2, "Smallest excess, in seconds"),
        Parameter("errors", 4, "Standard errors between the last 5 steps and those before"),
        Parameter(
            "tail", 1.3, "Time of the slowest tenth of the steps, compared with the median, that is a heavy tail"
        ),
        Parameter("patience_s", 300, "How long a busy machine may slow all work, in seconds"),
    )
    rank = 70

    def _begin(self) -> None:
        self._baselines: dict[tuple[int, frozenset[str]], _Baseline] = {}
        self._recent: deque[float] = deque(maxlen=STEPS.window)
        self._first: Step | None = None
        """Where the last steps became slow."""
        self._states: deque[frozenset[str]] = deque(maxlen=_RARE_STEPS)
        """Which states each of the last steps had."""

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare a step with the good ones of its kind."""
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

    def _taken(self, model: RunModel, step: Step) -> _Taken:
        phases = dict(step.phases) or _told_phases(model, step)
        before, near = self._states, list(self._states)[-_NEIGHBORS:]
        # A probe every tenth step, say: with it a step is of another kind.
        rare = [
            name
            for name in phases
            if 2 <= sum(name in one for one in before) <= len(before) / 2 and sum(name in one for one in near) <= 1
        ]
        before.append(frozenset(phases))
        seconds = max(0.0, step.seconds - sum(phases.pop(name) for name in rare))
        return _Taken(seconds, phases, _length(model, step))

    def _slow_phase(self, baseline: _Baseline, taken: _Taken, longer: float) -> str | None:
        """Return the phase that makes a step slow, empty where it is none of them; None where the step is not slow."""
        usual_s = median(baseline.total.seconds)
        excess = {
            name: seconds - longer * (median(baseline.phases[name].seconds) if baseline.phases[name].seconds else 0.0)
            for name, seconds in taken.phases.items()
        }
        largest = max(excess, key=excess.__getitem__, default="")
        if self._is_slow(baseline.total, taken.seconds, longer, usual_s):
            # The time may pass in no state, or be spread over all of them.
            return largest if largest and excess[largest] >= 0.3 * (taken.seconds - usual_s) else ""
        for name in sorted(excess, key=excess.__getitem__, reverse=True):
            # Generation varies and hides what happens to the rest of a step, which is therefore compared by itself.
            series = baseline.phases[name]
            is_work = state_kind(name) != "wait" and series.is_known
            if (
                is_work
                and self._is_longer(baseline.total, taken.seconds, excess[name], usual_s)
                and self._is_slow(series, taken.phases[name], longer, usual_s)
            ):
                return name
        return None

    def _is_longer(self, total: _Series, seconds: float, excess_s: float, usual_s: float) -> bool:
        """Return whether a phase that took longer made its step longer."""
        by_s = seconds - usual_s
        # Part of it may be made up for by a shorter wait, where samples are generated meanwhile.
        is_plain = by_s > max(self["share"] * usual_s, self["floor_s"]) and total.is_shifted(self["errors"])
        return is_plain or by_s > 0.5 * excess_s

    def _is_slow(self, series: _Series, seconds: float, longer: float, step_s: float) -> bool:
        usual_s = median(series.seconds)
        allowed_s = max(
            self["deviations"] * mad(series.seconds, usual_s),
            self["share"] * usual_s,
            self["share"] * step_s,
            self["floor_s"],
        )
        if quantile(series.seconds, 0.9) > self["tail"] * usual_s:
            # Where long steps are usual, as with heavy-tailed responses, only one longer than all of them is slow.
            allowed_s = max(allowed_s, 1.1 * max(series.seconds) - usual_s)
        return seconds > usual_s * longer + allowed_s and series.is_shifted(self["errors"])

    def _signal(self, model: RunModel, step: Step, taken: _Taken, baseline: _Baseline, phase: str) -> Signal:
        usual_s = median(baseline.total.seconds)
        now_s = median([seconds for seconds in self._recent if seconds])
        before = baseline.phases[phase].seconds if phase else ()
        excess_s = taken.phases[phase] - (median(before) if before else 0.0) if phase else 0.0
        of_it = f", most of it in {phase} (+{seconds_text(max(0.0, excess_s))})" if phase else ""
        severity, why = self._judge(model, step, now_s / max(usual_s, 1e-9))
        return Signal(
            {"phase": phase} if phase else {},
            f"Steps take {seconds_text(now_s)} instead of {seconds_text(usual_s)}{of_it}",
            f"Compared with the median of the last {len(baseline.total.seconds)} steps of the same kind that were not "
            f"slow.{why}",
            severity,
            key=("steps", *sorted(step.kind)),
            seconds_per_step=now_s - usual_s,
            share_of_step=(now_s - usual_s) / now_s,
            metrics=["step_time"],
            evidence=[
                fact("step time", now_s, "s", f"baseline {seconds_text(usual_s)}"),
                fact("deviation of the baseline", mad(baseline.total.seconds, usual_s), "s"),
            ],
        )

    def _judge(self, model: RunModel, step: Step, ratio: float) -> tuple[Severity, str]:
        """Return how serious it is, and why: a change made on purpose is not worth a warning, nor what will pass."""
        first = self._first or step
        if told := told_changes(model, first.number):
            return "info", f" The run told of a change there: {told[0]}."
        slowdown = model.pace.slowdown(first.start_ns, step.end_ns)
        lasted_s = (step.end_ns - first.start_ns) / SECOND
        if slowdown - 1.0 > 0.5 * (ratio - 1.0):
            why = f" All work takes {ratio_text(slowdown)} as long as usual: the machine is slow, not one part of it."
            return ("warning" if lasted_s > self["patience_s"] else "info"), why
        return "warning", ""


def _told_phases(model: RunModel, step: Step) -> dict[str, float]:
    """Return the phases of a step by its metrics."""
    tracks = [track for canonical in _TIMES for track in model.metrics.all(canonical)]
    return {track.name: told for track in tracks if (told := track.at(step.number)) is not None}


def _length(model: RunModel, step: Step) -> float | None:
    """Return how long the responses of a step are, by its metrics or its sessions."""
    for canonical in ("response_length", "tokens"):
        track = model.metrics.track(canonical)
        if track is not None and (value := track.at(step.number)) is not None:
            return value
    return None
