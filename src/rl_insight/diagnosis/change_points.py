"""Change points of a series: shifts to another level, and single spikes."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, sqrt
from typing import Final, Literal, NamedTuple

from rl_insight.diagnosis.robust import median, noise

Shape = Literal["shift", "spike"]

LEAST_BEFORE: Final = 4
LEAST_AFTER: Final = 3
LEAST_SHIFT: Final = 4.0
"""Standard deviations by which a level must change."""
LEAST_SPIKE: Final = 6.0
"""Standard deviations by which a single value must stand out: among many values, some are far off by chance."""
_LEAST_SHARE: Final = 0.05
"""Smaller relative changes of a level do not count."""
_NEAR: Final = 2
_AROUND: Final = 15
"""Neighbors on each side that a value is compared with: farther away, the level may differ."""
_COUNTED: Final = 9
"""The mean of this many counts is three times as certain as one; more are not used, as levels drift."""


class ChangePoint(NamedTuple):
    """A change of a series at an index."""

    shape: Shape
    place: int
    before: float
    after: float
    score: float
    """The size of the change in standard deviations of the series around its level."""


def change_at(values: Sequence[float], place: int, *, is_count: bool = False) -> ChangePoint | None:
    """Return how a series changes at an index or up to two values away; None if it does not.

    A shift is where two levels fit the series best; a shift elsewhere does not count. A spike is a single value that
    stands out from those before and after it. The noise of a count is its square root.

    >>> change_at([1.0, 1.1, 0.9, 1.0, 5.0, 5.1, 4.9, 5.0], 4)[:4]
    ('shift', 4, 1.0, 5.0)
    >>> change_at([1.0, 1.1, 0.9, 1.0, 9.0, 1.1, 0.9, 1.0], 4)[:4]
    ('spike', 4, 1.0, 9.0)
    """
    if not all(map(isfinite, values)) or not 0 <= place < len(values):
        return None
    found = [one for one in (_spike(values, place, is_count=is_count), _shift(values, place, is_count=is_count)) if one]
    return max(found, key=lambda one: one.score) if found else None


def _shift(values: Sequence[float], place: int, *, is_count: bool) -> ChangePoint | None:
    split = best_split(values)
    if split is None or abs(split - place) > _NEAR:
        return None
    before, after = values[:split], values[split:]
    levels = median(before), median(after)
    spread = max(noise(before), noise(after))
    if is_count:
        # A rise from zero to four errors per step is certain after a few steps, however much the counts vary.
        spread = max(spread, sqrt(max(levels[0], 1.0))) / sqrt(min(_COUNTED, len(before), len(after)))
    score = _score(*levels, spread)
    return ChangePoint("shift", split, *levels, score) if score >= LEAST_SHIFT else None


def _spike(values: Sequence[float], place: int, *, is_count: bool) -> ChangePoint | None:
    others = [*values[max(0, place - _AROUND) : place], *values[place + 1 : place + 1 + _AROUND]]
    if place < LEAST_BEFORE or len(values) - place - 1 < LEAST_AFTER:
        return None
    level = median(others)
    score = _score(level, values[place], max(noise(others), sqrt(max(level, 1.0)) if is_count else 0.0))
    # Next to another outlier, it is the start or the end of something longer.
    adjacent = max(abs(values[place - 1] - level), abs(values[place + 1] - level))
    if score < LEAST_SPIKE or adjacent > abs(values[place] - level) / 2:
        return None
    return ChangePoint("spike", place, level, values[place], score)


def best_split(values: Sequence[float]) -> int | None:
    """Return where two levels fit a series best, by least squares; None if it is too short.

    >>> best_split([0, 0, 0, 0, 0, 7, 7, 7])
    5
    """
    if len(values) < LEAST_BEFORE + LEAST_AFTER:
        return None
    total, left, best, place = sum(values), 0.0, -1.0, None
    for split in range(1, len(values)):
        left += values[split - 1]
        if not LEAST_BEFORE <= split <= len(values) - LEAST_AFTER:
            continue
        right = len(values) - split
        # The explained variance: the squared distance of the two means, weighted by their sizes.
        explained = split * right * (left / split - (total - left) / right) ** 2
        if explained > best:
            best, place = explained, split
    return place


def _score(before: float, after: float, spread: float) -> float:
    change = abs(after - before)
    level = max(abs(before), abs(after))
    if change <= _LEAST_SHARE * level or not change:
        return 0.0
    return change / max(spread, 0.01 * level)
