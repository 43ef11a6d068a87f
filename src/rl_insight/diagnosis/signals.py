"""The output of rules: signals with a culprit and evidence, in observations of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rl_insight.diagnosis.rows import ProcessRow
from rl_insight.schema.names import Severity


@dataclass(slots=True)
class Signal:
    """A fault in one observation: the culprit, the size of the fault, and the numbers that show it."""

    culprit: dict[str, Any]
    title: str
    explanation: str
    severity: Severity = "warning"
    key: tuple[str, ...] = ()
    """Distinguishes faults of one rule; empty uses the culprit."""
    anchor: str = ""
    """Identifies this occurrence; empty uses the first step in which it is seen."""
    start_ns: int | None = None
    """When it began; None uses the first observation."""
    impact: dict[str, float] = field(default_factory=dict)
    lanes: list[int] = field(default_factory=list)
    sessions: list[str] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    evidence: list[dict[str, Any]] = field(default_factory=list)

    @property
    def identity(self) -> tuple[str, ...]:
        """What distinguishes this fault from others of its rule."""
        return self.key or tuple(f"{name}={value}" for name, value in sorted(self.culprit.items()))


@dataclass(slots=True)
class Observation:
    """One look at the run, at a step, a metric's point, or a time; healthy if it has no signals."""

    time_ns: int
    step: int | None
    signals: list[Signal]
    start_ns: int | None = None
    """Start of the observed interval; None uses `time_ns`."""
    family: str = ""
    """A fault is confirmed and resolved only by observations of the same family."""


def fact(name: str, value: float, unit: str = "", compared_with: str = "") -> dict[str, Any]:
    """Return one number of the evidence."""
    rounded = float(f"{value:.4g}") if isinstance(value, float) else value
    optional = {"unit": unit, "compared_with": compared_with}
    return {"name": name, "value": rounded} | {key: text for key, text in optional.items() if text}


def saving(seconds: float, step_s: float) -> dict[str, float]:
    """Return the impact of a fault whose fix would make steps of `step_s` shorter by `seconds`."""
    return {"seconds_per_step": round(seconds, 3), "share_of_step": round(seconds / max(step_s, 1e-9), 4)}


def culprit_of(process: ProcessRow, **more: Any) -> dict[str, Any]:
    """Return a process as a culprit; keys without a value are left out."""
    found = {"role": process.role, "process_id": process.process_id, "host": process.host}
    optional = {"rank": process.rank, "gpu": process.gpu} | more
    return found | {name: value for name, value in optional.items() if value is not None}


def where(process: ProcessRow) -> str:
    """Return a process and its host, for titles."""
    return f"{process.title} on {process.host}" if process.host else process.title
