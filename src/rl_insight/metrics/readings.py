"""Metrics that are read from one object, each declared together with its read function."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from rl_insight.metrics.families import Across, Declaration, Family, LabelItems
from rl_insight.metrics.kinds import MetricKind

Subject = TypeVar("Subject")
Values = Iterable[tuple[LabelItems, float]]
MetricReading = tuple[Declaration, Callable[[Subject], Values]]
"""A declared metric, and how to read its series."""


class Readings(Generic[Subject]):
    """The metrics of one kind of object.

    >>> from rl_insight.metrics import GAUGE
    >>> readings: Readings[list[int]] = Readings(single("length", GAUGE, "Number of items.", len))
    >>> readings.families([7, 8])[0].points[0].value
    2
    """

    def __init__(self, *readings: MetricReading[Subject]) -> None:
        self._readings = readings
        self.declarations = tuple(declaration for declaration, _ in readings)

    def families(self, subject: Subject) -> list[Family]:
        """Return the metrics as they are now."""
        return [declaration.family(read(subject)) for declaration, read in self._readings]


def several(
    name: str,
    kind: MetricKind,
    documentation: str,
    read: Callable[[Subject], Values],
    across: Across = "mean",
) -> MetricReading[Subject]:
    """Declare a metric with any labels; `across` says how the gauges of several ranks become one."""
    return Declaration(name, kind, documentation, across), read


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
