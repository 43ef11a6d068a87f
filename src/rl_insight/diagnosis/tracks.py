"""Metrics by their canonical names, one point per step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import isfinite

from rl_insight.diagnosis.rows import SECOND
from rl_insight.metrics.canonical import CANONICAL, canonical_name
from rl_insight.schema.names import normalized

SETTLED_NS = 3 * SECOND
_SAME_NS = 60 * SECOND
_KEPT = 2_000


@dataclass(slots=True)
class TrackPoint:
    """A metric in a step, over all processes and labels."""

    step: int | None
    time_ns: int
    total: float = 0.0
    count: int = 0
    minimum: float = float("inf")
    maximum: float = float("-inf")
    bad_process: int | None = None
    """A process that recorded NaN or an infinity."""
    bad_ns: int = 0

    @property
    def value(self) -> float:
        """The mean of the finite values; NaN if there are none."""
        return self.total / self.count if self.count else float("nan")

    def add(self, value: float, time_ns: int, process: int) -> None:
        """Add a value."""
        if not isfinite(value):
            if self.bad_process is None or time_ns < self.bad_ns:
                self.bad_process, self.bad_ns = process, time_ns
            return
        self.total += value
        self.count += 1
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)


@dataclass(slots=True)
class Track:
    """A metric over the steps of a run."""

    name: str
    points: list[TrackPoint] = field(default_factory=list)
    dropped: int = 0
    """The number of old points that are no longer kept."""
    _by_step: dict[int, TrackPoint] = field(default_factory=dict)

    def add(self, step: int | None, time_ns: int, value: float, process: int) -> None:
        """Add a value; values of one step become one point."""
        point = self._by_step.get(step) if step is not None else None
        if point is not None and time_ns - point.time_ns > _SAME_NS and self.points[-1] is not point:
            point = None  # the run was resumed from an earlier step
        if point is None and step is None and self.points and time_ns - self.points[-1].time_ns < SECOND // 5:
            point = self.points[-1]
        if point is None:
            point = TrackPoint(step, time_ns)
            self.points.append(point)
            if step is not None:
                self._by_step[step] = point
            if len(self.points) > 2 * _KEPT:
                self._forget()
        point.add(value, time_ns, process)

    def _forget(self) -> None:
        self.dropped += _KEPT
        del self.points[:_KEPT]
        self._by_step = {point.step: point for point in self.points if point.step is not None}

    def settled(self, as_of_ns: int, first: int) -> Iterator[tuple[int, TrackPoint]]:
        """Yield the points from a number on that will no longer change, with their numbers."""
        for place in range(max(0, first - self.dropped), len(self.points)):
            point = self.points[place]
            if point.time_ns + SETTLED_NS > as_of_ns and place == len(self.points) - 1:
                return
            yield place + self.dropped, point

    def before(self, number: int, count: int) -> list[float]:
        """Return the values of up to `count` points before a number, in order."""
        place = number - self.dropped
        values = [point.value for point in self.points[max(0, place - count) : max(0, place)]]
        return [value for value in values if isfinite(value)]

    def at(self, step: int | None) -> float | None:
        """Return the value in a step; None if there is none."""
        point = self._by_step.get(step) if step is not None else None
        return point.value if point is not None and point.count else None


_ORDER = {normalized(name): place for names in CANONICAL.values() for place, name in enumerate(names)}


class Metrics:
    """Every metric of a run that rules use."""

    def __init__(self) -> None:
        self._tracks: dict[str, dict[str, Track]] = {}

    def add(self, name: str, step: int | None, time_ns: int, value: float, process: int) -> None:
        """Add a value of a metric under its name in the run."""
        canonical = canonical_name(name)
        if canonical is None:
            return
        named = self._tracks.setdefault(canonical, {})
        text = normalized(name)
        track = named.get(text)
        if track is None:
            track = named[text] = Track(name)
        track.add(step, time_ns, value, process)

    def track(self, canonical: str) -> Track | None:
        """Return a metric; if the run has several names for it, the one listed first in `CANONICAL`."""
        named = self._tracks.get(canonical)
        if not named:
            return None
        return named[min(named, key=lambda text: (_ORDER.get(text.removeprefix("train_"), 99), text))]

    def at(self, canonical: str, step: int | None) -> float | None:
        """Return the value of a metric in a step; None if it has none."""
        track = self.track(canonical)
        return None if track is None else track.at(step)

    def all(self, canonical: str) -> list[Track]:
        """Return every metric under one canonical name."""
        return list(self._tracks.get(canonical, {}).values())

    def names(self) -> set[str]:
        """Return the canonical names that the run has."""
        return set(self._tracks)
