"""Metrics that are read from one object, each declared together with how it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from rl_insight.metrics.families import Across, Declaration, Family, LabelItems
from rl_insight.metrics.kinds import MetricKind

Subject = TypeVar("Subject")
Values = Iterable[tuple[LabelItems, float]]


@dataclass(frozen=True, slots=True)
class MetricReading(Generic[Subject]):
    """A declared metric, and how to read its series."""

    declaration: Declaration
    read: Callable[[Subject], Values]


class Readings(Generic[Subject]):
    """The metrics of one kind of object.

    >>> from rl_insight.metrics import GAUGE
    >>> readings: Readings[list[int]] = Readings(single("length", GAUGE, "Number of items.", len))
    >>> readings.families([7, 8])[0].points[0].value
    2
    """

    def __init__(self, *readings: MetricReading[Subject]) -> None:
        self._readings = readings
        self.declarations = tuple(reading.declaration for reading in readings)

    def families(self, subject: Subject) -> list[Family]:
        """Return the metrics as they are now."""
        return [reading.declaration.family(reading.read(subject)) for reading in self._readings]


def several(
    name: str,
    kind: MetricKind,
    documentation: str,
    read: Callable[[Subject], Values],
    across: Across = "mean",
) -> MetricReading[Subject]:
    """Declare a metric with any labels; `across` says how the gauges of several ranks become one."""
    return MetricReading(Declaration(name, kind, documentation, across), read)


def single(name: str, kind: MetricKind, documentation: str, read: Callable[[Subject], float]) -> MetricReading[Subject]:
    """Declare a metric with one series that has no labels."""
    return several(name, kind, documentation, lambda subject: [((), read(subject))])


def by(
    label: str, name: str, kind: MetricKind, documentation: str, read: Callable[[Subject], Iterable[tuple[str, float]]]
) -> MetricReading[Subject]:
    """Declare a metric with one label."""
    return several(
        name, kind, documentation, lambda subject: [(((label, key),), value) for key, value in read(subject)]
    )
