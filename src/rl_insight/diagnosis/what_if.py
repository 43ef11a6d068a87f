"""Counterfactuals: how much shorter would a step be if one process were as fast as its peers?"""

from __future__ import annotations

from collections.abc import Mapping

from rl_insight.diagnosis.robust import median


def saved_at_barrier(seconds: Mapping[int, float], unit: int) -> float:
    """Return what a step would save if one unit took as long as the median of its peers, which all wait for it.

    The peers keep their times, so that the slowest of them bounds what is saved.

    >>> saved_at_barrier({0: 4.0, 1: 5.0, 2: 9.0}, 2), saved_at_barrier({0: 4.0, 1: 5.0, 2: 9.0}, 0)
    (4.0, 0.0)
    """
    others = [value for other, value in seconds.items() if other != unit]
    if not others:
        return 0.0
    return max(0.0, seconds[unit] - max(median(others), *others))


def saved_in_pool(paces: Mapping[int, float], unit: int, path_s: float) -> float:
    """Return what a step would save on its critical path if one unit of a pool worked at the pace of its peers.

    `paces` are seconds per call: in a pool every unit is busy all the time, and the slow one finishes fewer calls.

    >>> saved_in_pool({0: 1.0, 1: 1.0, 2: 2.0}, 2, 6.0)
    3.0
    """
    others = [pace for other, pace in paces.items() if other != unit]
    if not others or paces[unit] <= 0:
        return 0.0
    return path_s * max(0.0, 1.0 - median(others) / paces[unit])
