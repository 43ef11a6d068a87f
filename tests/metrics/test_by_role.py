"""Metrics of many ranks aggregated by role."""

from __future__ import annotations

import pytest

from rl_insight.metrics import COUNTER, GAUGE, HISTOGRAM
from rl_insight.metrics.by_role import by_role
from rl_insight.metrics.families import Distribution, Exemplar, Family, Point


def _labels(rank, role="actor", **more):
    return tuple(sorted({"rank": str(rank), "role": role, "host": f"node{rank}", **more}.items()))


@pytest.mark.parametrize(
    ("kind", "across", "expected"),
    [(COUNTER, "mean", 6.0), (GAUGE, "mean", 2.0), (GAUGE, "max", 3.0), (GAUGE, "sum", 6.0)],
)
def test_ranks_of_a_role_become_one_series(kind, across, expected):
    points = [Point(_labels(rank), float(rank), rank) for rank in (1, 2, 3)] + [Point(_labels(9, "rollout"), 7.0, 1)]
    (merged,) = by_role([Family("tokens", kind, "", points, across=across)])
    assert [(dict(point.labels)["role"], point.value) for point in merged.points] == [
        ("actor", expected),
        ("rollout", 7.0),
    ]
    assert dict(merged.points[0].labels) == {"role": "actor"}
    assert merged.points[0].time_ns == 3


def test_histograms_of_ranks_are_added():
    first = Distribution(2, 3.0, {1: 2}, 1.0, 2.0, {1: Exemplar("a" * 32, 1.5, 5)})
    second = Distribution(1, 9.0, {1: 0, 4: 1}, 9.0, 9.0, {1: Exemplar("b" * 32, 1.5, 7)})
    family = Family("seconds", HISTOGRAM, "", [Point(_labels(0), first), Point(_labels(1), second)])
    ((point,),) = [merged.points for merged in by_role([family])]
    assert point.value == Distribution(3, 12.0, {1: 2, 4: 1}, 1.0, 9.0, {1: Exemplar("b" * 32, 1.5, 7)})


def test_other_labels_still_tell_series_apart_and_families_without_ranks_stay():
    split = Family("x", GAUGE, "", [Point(_labels(0, tool="a"), 1.0), Point(_labels(0, tool="b"), 2.0)])
    plain = Family("y", GAUGE, "", [Point((), 1.0)])
    assert by_role([split, plain]) == [split, plain]
