"""What a rule is: its inputs, parameters, evaluation, culprit and remedy in one place."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, NamedTuple

from rl_insight.diagnosis.hardware import Device
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.robust import baseline
from rl_insight.diagnosis.role_steps import RoleStep
from rl_insight.diagnosis.rows import SECOND
from rl_insight.diagnosis.signals import Observation, Signal, fact
from rl_insight.diagnosis.steps import WARM_UP_STEPS, ObservedStep
from rl_insight.diagnosis.tracks import Track
from rl_insight.metrics.canonical import CANONICAL
from rl_insight.schema.names import Severity
from rl_insight.words import number_text


@dataclass(frozen=True, slots=True)
class Parameter:
    """A threshold that can be configured as `diagnosis.rules.<rule>.<name>`."""

    name: str
    default: float
    meaning: str


class Input(NamedTuple):
    """Data that a rule needs from a run."""

    is_in: Callable[[RunModel], object]
    what: str
    how: str = ""

    @property
    def advice(self) -> str:
        """The missing input, for the coverage list."""
        return f"no {self.what}: {self.how}" if self.how else f"no {self.what}"


SESSIONS: Final = Input(lambda model: model.sessions_seen, "sessions", "wrap each sample in rl_insight.session")
NUMBERED_STEPS: Final = Input(
    lambda model: model.steps.total or model.steps.current is not None,
    "steps",
    "call rl_insight.set_step(step), or log training/global_step",
)
GPUS: Final = Input(
    lambda model: model.hardware.gpus,
    "GPU metrics",
    "install rl-insight[nvml], or let Ray's dashboard report them",
)
HOSTS: Final = Input(lambda model: model.hardware.hosts, "host metrics", "turn on hardware monitoring")


def engine_input(*alternatives: set[str]) -> Input:
    """Return the input of a rule that needs one of several sets of readings, all of the same engine."""
    return Input(
        lambda model: any(
            one.quantities.keys() >= some for one in model.hardware.engines.values() for some in alternatives
        ),
        "vLLM or SGLang metrics",
        "register the address of the engine with `rl-insight server targets`",
    )


@dataclass(frozen=True, slots=True)
class Confirmation:
    """How often a signal has to be seen before it is a finding: in `needed` of the last `window` observations.

    Steps may take a fraction of a second, and a machine that pauses for one second slows several of them. The signal
    must therefore also last for `lasting_s`, or for `enough` observations.
    """

    needed: int = 3
    window: int = 5
    lasting_s: float = 0.0
    enough: int = 25

    @property
    def kept(self) -> int:
        """How often the signal must still be seen for the finding to stay open."""
        return min(self.needed, 3) if self.window > self.needed else 1


STEPS: Final = Confirmation(3, 5, 10.0)
PERSISTENT: Final = Confirmation(4, 5, 10.0)
TICKS: Final = Confirmation(2, 2)
"""Two evaluations in a row, for rules that watch the clock."""
AT_ONCE: Final = Confirmation(1, 5)


class Rule(ABC):
    """A rule of one run. It keeps track of what it has evaluated; the engine keeps the findings.

    A rule's docstring says what is wrong in a few words; its documentation begins with it.
    """

    name: ClassVar[str]
    """By default the name of the class, in snake case."""
    threshold: ClassVar[str]
    """When it fires, for the documentation; parameters in braces."""
    needs: ClassVar[str] = ""
    """Its inputs, for the documentation; empty if `requires` is enough."""
    remedy: ClassVar[str]
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    requires: ClassVar[Input | None] = None
    """Without it, the rule is listed as not covered."""
    confirmation: ClassVar[Confirmation] = STEPS
    rank: ClassVar[int] = 50
    """Its rank among causes: lower is closer to the root cause."""
    explains: ClassVar[frozenset[str]] = frozenset()
    """Rules whose findings this one makes redundant while both are open."""
    is_local: ClassVar[bool] = False
    """It does not explain findings about other hosts."""
    asks_stacks: ClassVar[bool] = False
    """Its evidence includes the stacks of the processes."""

    def __init_subclass__(cls) -> None:
        cls.name = cls.__dict__.get("name") or re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        known = {parameter.name: parameter.default for parameter in self.parameters}
        self._values = known | {name: value for name, value in (values or {}).items() if name in known}
        self._begin()

    def _begin(self) -> None:
        """Initialize the state kept between evaluations; most rules keep none."""

    def __getitem__(self, name: str) -> float:
        return self._values[name]

    @classmethod
    def inputs(cls) -> str:
        """Return what it needs, for the documentation."""
        return cls.needs or (cls.requires.what if cls.requires else "nothing")

    def missing(self, model: RunModel) -> str | None:
        """Return which input the run lacks, and how to provide it; None if the rule can be evaluated."""
        return None if self.requires is None or self.requires.is_in(model) else self.requires.advice

    @abstractmethod
    def evaluate(self, model: RunModel) -> Iterable[Observation]:
        """Return the observations since the last evaluation."""


class StepRule(Rule):
    """A rule that looks at each finished step of the leading role after the warm-up."""

    requires = NUMBERED_STEPS

    def missing(self, model: RunModel) -> str | None:
        """Return which input the run lacks; steps are always required."""
        return super().missing(model) or (None if NUMBERED_STEPS.is_in(model) else NUMBERED_STEPS.advice)

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the steps that closed."""
        for step in model.new_steps:
            if step.is_warm_up:
                continue
            signals = self._look(model, step)
            if signals is not None:
                yield Observation(step.end_ns, step.number, signals, step.start_ns)

    @abstractmethod
    def _look(self, model: RunModel, step: ObservedStep) -> list[Signal] | None:
        """Return the faults in a step; None if the step cannot be judged."""


class RoleRule(Rule):
    """A rule that looks at each finished step of each role."""

    warm_up: ClassVar[int] = WARM_UP_STEPS
    """The first steps of a role are skipped."""
    by_lane: ClassVar[bool] = False
    """Whether it also looks at roles whose lanes are compared instead of processes."""
    family: ClassVar[str] = ""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._seen: Counter[str] = Counter()

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the settled steps of each role."""
        step_s = model.steps.usual_seconds()
        for role_step in model.roles.settled:
            role = role_step.role
            self._seen[role] += 1
            if step_s is not None and self._seen[role] > self.warm_up and (self.by_lane or not role_step.by_lane):
                signals = self._look(model, role_step, step_s)
                yield Observation(role_step.end_ns, role_step.step, signals, role_step.start_ns, self.family + role)

    @abstractmethod
    def _look(self, model: RunModel, role_step: RoleStep, step_s: float) -> list[Signal]:
        """Return the faults in a step of a role, while steps of the run take `step_s`."""


class TickRule(Rule):
    """A rule that watches the clock; it is evaluated at every tick until the run has ended."""

    confirmation = TICKS

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the run as of now."""
        signals = [] if model.has_ended() else list(self._look(model))
        yield Observation(model.as_of_ns, model.steps.current, signals)

    @abstractmethod
    def _look(self, model: RunModel) -> Iterable[Signal]:
        """Return the faults as of now."""


class DeviceRule(TickRule):
    """A rule that judges each device by the readings of its last window."""

    devices: ClassVar[Literal["gpus", "hosts", "engines"]]
    window: ClassVar[str] = "window_s"
    """The parameter that holds the length of the window, in seconds."""
    every_ns: ClassVar[int] = 1
    """Evaluated at multiples of this time."""

    def evaluate(self, model: RunModel) -> Iterator[Observation]:
        """Look at the devices, if it is time to."""
        if model.as_of_ns % self.every_ns == 0:
            yield from super().evaluate(model)

    def _since(self, model: RunModel) -> int:
        """Return the start of the window."""
        return model.as_of_ns - int(self[self.window] * SECOND)

    def _look(self, model: RunModel) -> Iterable[Signal]:
        since = self._since(model)
        found = (self._judge(model, one, since) for one in getattr(model.hardware, self.devices).values())
        return [signal for signal in found if signal is not None]

    def _judge(self, model: RunModel, device: Device, since: int) -> Signal | None:
        """Return the fault of a device, by its readings since a time."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class MetricLook:
    """A point of a metric, and the run around it."""

    model: RunModel
    canonical: str
    track: Track
    number: int
    step: int | None
    value: float
    """The mean of the step."""

    @property
    def name(self) -> str:
        """The metric's name in the run."""
        return self.track.name

    def last(self, count: int) -> list[float]:
        """Return the values of up to `count` points, this one included."""
        return [*self.track.before(self.number, count - 1), self.value]

    def found(self, title: str, explanation: str, severity: Severity, *evidence: dict[str, Any]) -> list[Signal]:
        """Return a finding about the metric."""
        return [Signal({"metric": self.name}, title, explanation, severity, metrics=[self.name], evidence=[*evidence])]


class MetricRule(Rule):
    """A rule that looks at each point of a metric, after a warm-up."""

    metrics: ClassVar[tuple[str, ...]]
    """Canonical names; any of them is enough."""
    warm_up: ClassVar[int] = 10
    """The number of points ignored at the start of a metric."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._places: dict[str, int] = {}

    @classmethod
    def inputs(cls) -> str:
        """Return examples of its metrics."""
        return cls.needs or f"a metric such as {' or '.join(CANONICAL[name][0] for name in cls.metrics)}"

    def missing(self, model: RunModel) -> str | None:
        """Return which metrics the run lacks."""
        has_metric = any(model.metrics.track(name) is not None for name in self.metrics)
        return None if has_metric else f"no {self.inputs().removeprefix('a ')}"

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
                signals = self._look(MetricLook(model, canonical, track, number, point.step, point.value))
                if signals is not None:
                    step = point.step if point.step is not None else number
                    yield Observation(point.time_ns, step, signals, family=canonical)

    @abstractmethod
    def _look(self, at: MetricLook) -> list[Signal] | None:
        """Return the faults at a point; None if it cannot be judged."""


class BaselineRule(MetricRule):
    """A rule that compares each point of a metric with its baseline: the median of the last good points."""

    least: ClassVar[int] = 10
    """Fewest points of a baseline."""
    recent: ClassVar[int] = 30
    """Most points of a baseline."""
    learns: ClassVar[bool] = True
    """Whether good points update a baseline that has enough points."""

    def __init__(self, values: Mapping[str, float] | None = None) -> None:
        super().__init__(values)
        self._good: dict[str, deque[float]] = {}

    def _look(self, at: MetricLook) -> list[Signal] | None:
        good = self._good.setdefault(at.canonical, deque(maxlen=30))
        usual = baseline(list(good)[-self.recent :], self.least)
        found = None if usual is None else self._compare(at, usual)
        if not found and (usual is None or self.learns):
            good.append(at.value)
        return found

    @abstractmethod
    def _compare(self, at: MetricLook, usual: float) -> list[Signal]:
        """Return the faults at a point."""

    @staticmethod
    def _found(at: MetricLook, usual: float, title: str, why: str, severity: Severity = "warning") -> list[Signal]:
        """Return a finding about a metric and its baseline."""
        return at.found(title, why, severity, fact(at.name, at.value, "", f"baseline {number_text(usual)}"))
