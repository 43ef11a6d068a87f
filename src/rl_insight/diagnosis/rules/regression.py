"""Steps that take longer than the same kind of step took before."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import mad, median, quantile
from rl_insight.diagnosis.rule import STEPS, Parameter, Signal, StepRule, fact
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
    held: deque[tuple[Step, float | None, bool]] = field(default_factory=deque)
    """Steps that are not known to be good yet: a slow step must not become its own baseline."""

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
        "{floor_s} s), 3 of 5. Longer responses are allowed for; where one step in ten takes {tail} times the median, "
        "only steps longer than all of them count."
    )
    needs = "steps"
    remedy = "Look at the named state on the timeline before and after the first slow step."
    parameters = (
        Parameter("deviations", 4, "Median absolute deviations above the baseline"),
        Parameter("share", 0.15, "Share of the baseline"),
        Parameter("floor_s", 0.2, "Smallest excess, in seconds"),
        Parameter(
            "tail", 1.3, "Time of the slowest tenth of the steps, compared with the median, that is a heavy tail"
        ),
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
        is_slow = step.seconds > usual_s * longer + self._noise_s(baseline.seconds, usual_s)
        self._learn(baseline, step, length, is_slow=is_slow)
        self._recent.append(step.seconds if is_slow else 0.0)
        return [self._signal(step, baseline, usual_s)] if is_slow else []

    def _noise_s(self, seconds: deque[float], usual_s: float) -> float:
        """Return by how much a step may exceed the baseline."""
        allowed_s = max(self["deviations"] * mad(seconds, usual_s), self["share"] * usual_s, self["floor_s"])
        if quantile(seconds, 0.9) > self["tail"] * usual_s:
            # Where long steps are usual, as with heavy-tailed responses, only one longer than all of them is slow.
            allowed_s = max(allowed_s, 1.1 * max(seconds) - usual_s)
        return allowed_s

    @staticmethod
    def _learn(baseline: _Baseline, step: Step, length: float | None, *, is_slow: bool) -> None:
        """Add a step to the baseline; a slow one only after it turned out to be a single spike."""
        baseline.held.append((step, length, is_slow))
        if len(baseline.held) < STEPS.window:
            return
        spikes = sum(slow for _, _, slow in baseline.held)
        earlier, its_length, was_slow = baseline.held.popleft()
        if not was_slow or spikes < STEPS.needed:
            baseline.add(earlier, its_length)

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
