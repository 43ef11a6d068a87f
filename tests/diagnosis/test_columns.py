"""Spans as columns give the same answers as one span after the other."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rl_insight.diagnosis.robust import length_s, union, union_seconds
from rl_insight.diagnosis.rows import NEVER
from rl_insight.diagnosis.span_table import NO_STEP, RunningSpans, SpanTable

SECOND = 1_000_000_000
BEGIN_NS = 1_790_000_000 * SECOND


@pytest.mark.parametrize("jump_s", [0, 1_700_000_000], ids=["steady", "a clock that jumped by decades"])
def test_covered_seconds_of_groups_are_those_of_each_alone(jump_s):
    draw = random.Random(4)
    intervals: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for number in range(400):
        start = BEGIN_NS + int(draw.uniform(0, 60) * SECOND) - (jump_s * SECOND if number % 50 == 7 else 0)
        key = (draw.randrange(3), draw.randrange(5))
        intervals.setdefault(key, []).append((start, start + int(draw.expovariate(0.5) * SECOND)))
    rows = [(*key, *interval) for key, some in intervals.items() for interval in some]
    draw.shuffle(rows)
    names, units, starts, ends = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    first, second, seconds = (column.tolist() for column in union_seconds((names, units), starts, ends))
    found = dict(zip(zip(first, second, strict=True), seconds, strict=True))
    assert found == pytest.approx({key: length_s(union(some)) for key, some in intervals.items()})


def _table(intervals):
    count = len(intervals)
    starts, ends = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
    numbers, nothing = np.arange(count), np.full(count, None, object)
    zeros = np.zeros(count, np.int64)
    return SpanTable(
        ends, starts, numbers, zeros, zeros, zeros, np.full(count, NO_STEP), zeros > 0, nothing, nothing, nothing,
        np.full(count, np.nan), zeros,
    )  # fmt: skip


def test_spans_are_handed_out_once_in_the_order_of_their_ends_and_are_open_until_then():
    draw = random.Random(6)
    intervals = []
    for _ in range(300):
        start = draw.randrange(100)
        intervals.append((start, NEVER if draw.random() < 0.05 else start + 1 + int(draw.expovariate(0.1))))
    running = RunningSpans()
    assert running.advance(0) is None
    assert running.open(0) is None
    told = []
    for first in range(0, 300, 100):  # they arrive in three batches, each in any order
        running.add(_table(intervals[first : first + 100]))
        moment = 40 * (1 + first // 100)
        told += running.advance(moment).rows([""])
        arrived = intervals[: first + 100]
        open_now = sorted((row.start_ns, row.end_ns) for row in running.open(moment - 1).rows([""]))
        assert open_now == sorted(one for one in arrived if one[0] < moment and one[1] > moment)
    assert sorted((row.start_ns, row.end_ns) for row in told) == sorted(one for one in intervals if one[1] <= 120)
    assert [row.step for row in told] == [None] * len(told)
