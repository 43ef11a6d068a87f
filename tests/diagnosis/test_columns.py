"""Spans as columns give the same results as spans processed one by one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from rl_insight.diagnosis.robust import length_s, union, union_seconds
from rl_insight.diagnosis.rows import NEVER
from rl_insight.diagnosis.span_table import NO_STEP, RunningSpans, SpanTable, joined, read_spans

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


def _read(count, error=None, tokens=np.nan):
    """Return spans as in a query result: missing values are masked."""
    columns = _table([(10 * place, 10 * place + 5) for place in range(count)])._asdict()
    texts = {name: np.ma.masked_all(count, object) for name in ("error", "session_id", "tool")}
    if error is not None:
        texts["error"][count // 2] = error
    return read_spans(columns | texts | {"tokens": np.full(count, tokens)})


def test_columns_with_one_value_take_no_memory_and_read_like_the_others():
    same, other = _read(50), _read(40, "out of memory", 7.0)
    assert [name for name, column in same._asdict().items() if column.strides == (0,)] == [
        "lane_id", "name_id", "segment", "step", "failed", "error", "session_id", "tool", "tokens", "depth"
    ]  # fmt: skip
    twice, mixed = joined([same, same]), joined([same, other, same.take(slice(0, 0))])
    assert twice.tokens.strides == twice.error.strides == (0,)
    assert [row.error for row in mixed.rows([""])] == [None] * 70 + ["out of memory"] + [None] * 19
    assert [row.tokens for row in mixed.rows([""])] == [None] * 50 + [7.0] * 40
    for which in (mixed.start_ns % 20 == 0, np.array([89, 3, 70]), slice(45, 75), mixed.start_ns < 0):
        places = np.arange(90)[which].tolist()
        assert mixed.take(which).rows([""]) == [mixed.rows([""])[place] for place in places]
    assert [row.span_id for row in twice.take(np.array([99, 0])).rows([""])] == [49, 0]
