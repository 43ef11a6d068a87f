"""What a rule is: its inputs, parameters, evaluation, culprit and remedy in one place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal

from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.rows import ProcessRow
from rl_insight.diagnosis.steps import Step
from rl_insight.diagnosis.tracks import Track, TrackPoint

Severity = Literal["info", "warning", "critical"]
SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")
LEARNING_WARM_UP: Final = 10
"""Learning rules ignore the first points of a metric."""
NO_SESSIONS: Final = "no sessions: wrap each sample in rl_insight.session"
NO_STEPS: Final = "no steps: call rl_insight.set_step(step), or log training/global_step"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A threshold that can be configured as `diagnosis.rules.<rule>.<name>`."""

    name: str
    default: float
    meaning: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How often something has to be seen before it is a finding: `needed` of the last `window` observations.

    Steps may take a fraction of a second, and a machine that stops for one second would slow several of them: it must
    also have lasted for `lasting_s`, or for `enough` observations.
    """

    needed: int = 3
    window: int = 5
    lasting_s: float = 0.0
    enough: int = 25

    @property
    def kept(self) -> int:
        """How often it must still be seen for the finding to stay open."""
        return min(self.needed, 3) if self.window > self.needed else 1


STEPS: Final = Confirmation(3, 5, 10.0)
PERSISTENT: Final = Confirmation(4, 5, 10.0)
TICKS: Final = Confirmation(2, 2)
"""Two evaluations in a row, for rules that watch the clock."""
AT_ONCE: Final = Confirmation(1, 5)


@dataclass(slots=True)
class Signal:
    """What a rule sees in one observation: who, how much, and the numbers that show it."""

    culprit: dict[str, Any]
    title: str
    explanation: str
    severity: Severity = "warning"
    key: tuple[str, ...] = ()
    """Tells faults of one rule apart; empty takes the culprit."""
    anchor: str = ""
    """Names this occurrence; empty takes the first step in which it is seen."""
    start_ns: int | None = None
    """When it began; None takes the first observation."""
    remedy: str = ""
    """Takes the place of the rule's."""
    seconds_per_step: float | None = None
    share_of_step: float | None = None
    lanes: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)

    @property
    def identity(self) -> tuple[str, ...]:
        """What tells this fault from others of its rule."""
        return self.key or tuple(f"{name}={value}" for name, value in sorted(self.culprit.items()))


@dataclass(slots=True)
class Observation:
    """One look at the run: a step, a point of a metric, or a moment; without signals it was healthy."""

    time_ns: int
    step: int | None
    signals: list[Signal]
    start_ns: int | None = None
    """When what was looked at began; None takes `time_ns`."""
    family: str = ""
    """Observations of one family follow one another; those of another family say nothing about its faults."""


class Rule(ABC):
    """A rule of one run. It keeps what it has already looked at; the engine keeps what it found.

    The docstring of a rule says what is wrong, in a few words; the documentation begins with it.
    """

    name: ClassVar[str]
    threshold: ClassVar[str]
    """When it speaks, for the documentation; parameters in braces."""
    needs: ClassVar[str]
    """Which inputs it looks at."""
    remedy: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    confirmation: ClassVar[Confirmation] = STEPS
    rank: ClassVar[int] = 50
    """Its place among causes: lower is nearer to the root."""
    explains: ClassVar[frozenset[str]] = frozenset()
    """Rules whose findings this one makes redundant while both are open."""
    is_local: ClassVar[bool] = False
    """It explains nothing that is said about another host."""

    asks_stacks: ClassVar[bool] = False
    """Stacks of the processes are part of its evidence."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        known = {parameter.name: parameter.default for parameter in self.parameters}
        self._values = known | {name: value for name, value in (values or {}).items() if name in known}
        self._begin()

    def _begin(self) -> None:  # most rules keep nothing
        """Prepare what the rule keeps between evaluations."""

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    def missing(self, model: RunModel) -> str | None:
        """Return what the run lacks for this rule, and how to provide it; None when it can be evaluated."""
        return self._lacks(model)

    def _lacks(self, model: RunModel) -> str | None:  # noqa: ARG002
        """Return what is missing for this rule in particular."""
        return None

    @abstractmethod
    def evaluate(self, model: RunModel) -> Iterable[Observation]:
        """Return what was seen since the last evaluation."""


class StepRule(Rule):
    """A rule that looks at each step of the leading role that is over and not part of a warm-up."""

    def missing(self, model: RunModel) -> str | None:
        """Return what the run lacks for this rule."""
        has_steps = model.steps.total or model.steps.current is not None
        return self._lacks(model) or (None if has_steps else NO_STEPS)

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the steps that closed."""
        for step in model.new_steps:
            if step.is_warm_up:
                continue
            signals = self.look(model, step)
            if signals is not None:
                yield Observation(step.end_ns, step.number, signals, step.start_ns)

    @abstractmethod
    def look(self, model: RunModel, step: Step) -> list[Signal] | None:
        """Return what is wrong in a step; None when the step cannot be judged."""


class MomentRule(Rule):
    """A rule that watches the clock; it looks at every moment until the run has ended."""

    confirmation = TICKS

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at this moment."""
        signals = [] if model.has_ended() else list(self.look(model))
        yield Observation(model.as_of_ns, model.steps.current, signals)

    @abstractmethod
    def look(self, model: RunModel) -> Iterable[Signal]:
        """Return what is wrong now."""


@dataclass(frozen=True, slots=True)
class MetricLook:
    """A point of a metric, and the run around it."""

    model: RunModel
    canonical: str
    track: Track
    number: int
    point: TrackPoint

    @property
    def name(self) -> str:
        """The metric, as the run calls it."""
        return self.track.name

    @property
    def value(self) -> float:
        """The mean of the step."""
        return self.point.value

    @property
    def step(self) -> int | None:
        """The step of the point."""
        return self.point.step

    def last(self, count: int) -> list[float]:
        """Return the values of up to so many points, this one included."""
        return [*self.track.before(self.number, count - 1), self.value]

    def found(self, title: str, explanation: str, severity: Severity, *evidence: dict[str, Any]) -> list[Signal]:
        """Return a finding about the metric."""
        return [Signal({"metric": self.name}, title, explanation, severity, metrics=[self.name], evidence=[*evidence])]


class MetricRule(Rule):
    """A rule that looks at each point of a metric, after a warm-up."""

    metrics: ClassVar[tuple[str, ...]]
    """Canonical names; any of them is enough."""
    warm_up: ClassVar[int] = LEARNING_WARM_UP
    advice: ClassVar[str] = ""
    """Names of the metric in frameworks, for the coverage list."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._places: dict[str, int] = {}

    def _lacks(self, model: RunModel) -> str | None:
        if any(model.metrics.track(name) is not None for name in self.metrics):
            return None
        return f"no metric for {' or '.join(name.replace('_', ' ') for name in self.metrics)}{self.advice}"

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the points that are settled."""
        for canonical in self.metrics:
            track = model.metrics.track(canonical)
            if track is None:
                continue
            for number, point in track.settled(model.as_of_ns, self._places.get(canonical, 0)):
                self._places[canonical] = number + 1
                if number < self.warm_up or not point.count:
                    continue
                signals = self.look(MetricLook(model, canonical, track, number, point))
                if signals is not None:
                    step = point.step if point.step is not None else number
                    yield Observation(point.time_ns, step, signals, family=canonical)

    @abstractmethod
    def look(self, at: MetricLook) -> list[Signal] | None:
        """Return what is wrong at a point; None when it cannot be judged."""


def fact(name: str, value: float, unit: str = "", compared_with: str = "") -> dict[str, Any]:
    """Return one number of the evidence."""
    rounded = float(f"{value:.4g}") if isinstance(value, float) else value
    found: dict[str, Any] = {"name": name, "value": rounded}
    if unit:
        found["unit"] = unit
    if compared_with:
        found["compared_with"] = compared_with
    return found


def culprit_of(process: ProcessRow, **more: Any) -> dict[str, Any]:
    """Return a process as a culprit."""
    found: dict[str, Any] = {"role": process.role, "process_id": process.process_id, "host": process.host}
    if process.rank is not None:
        found["rank"] = process.rank
    if process.gpu is not None:
        found["gpu"] = process.gpu
    return found | {name: value for name, value in more.items() if value is not None}


def where(process: ProcessRow) -> str:
    """Return a process and its host, for titles."""
    return f"{process.title} on {process.host}" if process.host else process.title
