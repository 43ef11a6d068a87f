"""Steps that take longer than the same kind of step took before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import mad, median
from rl_insight.diagnosis.rule import Parameter, Signal, StepRule, fact
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.words import seconds_text

BASELINE_STEPS = 30
LEAST_STEPS = 10


@dataclass(slots=True)
class _Baseline:
    """The last good steps of one kind."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_STEPS))
    length: deque[float] = field(default_factory=lambda: deque(maxlen=BASELINE_STEPS))
    phases: dict[str, deque[float]] = field(default_factory=dict)

    def add(self, step: Step, length: float | None) -> None:
        self.seconds.append(step.seconds)
        if length is not None:
            self.length.append(length)
        for name, seconds in step.phases.items():
            self.phases.setdefault(name, deque(maxlen=BASELINE_STEPS)).append(seconds)


class StepRegression(StepRule):
    """The step time has risen."""

    name = "step_regression"
    pathology = "Steps take longer than before."
    threshold = (
        "A step exceeds the median of the last 30 good steps of its kind by max({deviations} MAD, {share} of it, "
        "{floor_s} s), 3 of 5. Longer responses are allowed for."
    )
    needs = "steps"
    remedy = "Look at the named state on the timeline before and after the first slow step."
    parameters = (
        Parameter("deviations", 4, "Median absolute deviations above the baseline"),
        Parameter("share", 0.15, "Share of the baseline"),
        Parameter("floor_s", 0.2, "Smallest excess, in seconds"),
    )
    rank = 70

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._baselines: dict[tuple[int, frozenset[str]], _Baseline] = {}
        self._recent: deque[float] = deque(maxlen=5)

    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Compare a step with the good ones of its kind."""
        baseline = self._baselines.setdefault((step.generation, step.kind), _Baseline())
        length = _length(model, step)
        if len(baseline.seconds) < LEAST_STEPS:
            baseline.add(step, length)
            return None
        usual_s = median(baseline.seconds)
        longer = 1.0
        if length is not None and len(baseline.length) >= LEAST_STEPS:
            longer = max(1.0, length / max(median(baseline.length), 1e-9))
        noise_s = max(self["deviations"] * mad(baseline.seconds, usual_s), self["share"] * usual_s, self["floor_s"])
        if step.seconds <= usual_s * longer + noise_s:
            baseline.add(step, length)
            self._recent.append(0.0)
            return []
        self._recent.append(step.seconds)
        return [self._signal(step, baseline, usual_s)]

    def _signal(self, step: Step, baseline: _Baseline, usual_s: float) -> Signal:
        slow = [seconds for seconds in self._recent if seconds]
        now_s = median(slow)
        excess = {
            name: seconds - (median(baseline.phases[name]) if name in baseline.phases else 0.0)
            for name, seconds in step.phases.items()
        }
        phase = max(excess, key=excess.__getitem__, default=None)
        if phase is not None and excess[phase] < 0.3 * (step.seconds - usual_s):
            phase = None  # the time passes in no state, or is spread over all of them
        culprit = {} if phase is None else {"phase": phase}
        of_it = "" if phase is None else f", most of it in {phase} (+{seconds_text(max(0.0, excess[phase]))})"
        return Signal(
            culprit,
            f"Steps take {seconds_text(now_s)} instead of {seconds_text(usual_s)}{of_it}",
            f"Compared with the median of the last {len(baseline.seconds)} steps of the same kind that were not slow.",
            key=("steps", *sorted(step.kind)),
            seconds_per_step=now_s - usual_s,
            share_of_step=(now_s - usual_s) / now_s,
            metrics=["step_time"],
            evidence=[
                fact("step time", now_s, "s", f"baseline {seconds_text(usual_s)}"),
                fact("deviation of the baseline", mad(baseline.seconds, usual_s), "s"),
            ],
        )


def _length(model: RunModel, step: Step) -> float | None:
    """Return how long the responses of a step are, by its metrics or its sessions."""
    for canonical in ("response_length", "tokens"):
        track = model.metrics.track(canonical)
        if track is not None and (value := track.at(step.number)) is not None:
            return value
    return None
