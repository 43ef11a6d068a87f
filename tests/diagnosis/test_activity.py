"""Activity stored as columns covers the same time as the individual spans."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.diagnosis import activity
from rl_insight.diagnosis.activity import ActivityBook
from rl_insight.diagnosis.robust import clipped, median, medians_without, merged, union
from rl_insight.diagnosis.span_table import NO_STEP, SpanTable

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda one: (one[0], sum(one))), max_size=25)


def _spans(intervals):
    count = len(intervals)
    starts, ends = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
    zeros, nothing = np.zeros(count, np.int64), np.full(count, None, object)
    return SpanTable(
        ends, starts, zeros, zeros, zeros, zeros, np.full(count, NO_STEP), zeros > 0, nothing, nothing, nothing,
        np.full(count, np.nan), zeros,
    )  # fmt: skip


@given(by_key=st.lists(INTERVALS.filter(bool), min_size=1, max_size=4), far=st.sampled_from([0, 2**61]))
def test_merged_intervals_of_a_key_are_their_union(by_key, far):
    moved = [[(start + far * key, end + far * key) for start, end in some] for key, some in enumerate(by_key[:2])]
    rows = [(key, *one) for key, some in enumerate(moved + by_key[2:]) for one in some]
    random.Random(1).shuffle(rows)
    found = merged(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))
    keys = sorted({row[0] for row in rows})
    wanted = [(key, *one) for key in keys for one in union(row[1:] for row in rows if row[0] == key)]
    assert list(zip(*(column.tolist() for column in found), strict=True)) == wanted


@given(moments=st.lists(INTERVALS.filter(bool), min_size=1, max_size=4), start=st.integers(0, 40))
def test_a_window_holds_what_a_process_did_in_it(moments, start):
    book = ActivityBook()
    for intervals in moments:
        owners = np.arange(len(intervals)) % 3
        book.note(_spans(intervals), owners, np.arange(len(intervals)) % 2)
    for process in range(3):
        for is_wait, asked in ((0, book.busy), (1, book.waiting)):
            own = [
                one
                for some in moments
                for place, one in enumerate(some)
                if place % 3 == process and place % 2 == is_wait and one[1] > one[0]
            ]
            found = [one for one in asked(process, start, start + 20) if one[1] > one[0]]
            assert found == union(clipped(own, start, start + 20))
    hosts = {0: "left", 1: "right", 2: "left"}
    both = book.busy_by_group(hosts, start, start + 20)
    for host in ("left", "right"):
        members = [process for process, name in hosts.items() if name == host]
        wanted = union(one for process in members for one in book.busy(process, start, start + 20))
        assert [one for one in both.get(host, []) if one[1] > one[0]] == [one for one in wanted if one[1] > one[0]]


def test_what_is_kept_is_bounded_over_all_processes_and_the_oldest_goes_first(monkeypatch):
    monkeypatch.setattr(activity, "_KEPT_INTERVALS", 10)
    monkeypatch.setattr(activity, "_KEPT_OF_EACH", 3)
    book = ActivityBook()
    for moment in range(10):
        book.note(_spans([(100 * moment, 100 * moment + 5)] * 10), np.arange(10), np.zeros(10, np.int64))
    assert [book.busy(4, 100 * moment, 100 * moment + 9) for moment in (6, 7, 9)] == [[], [(700, 705)], [(900, 905)]]
    book.forget(810)
    assert book.busy(4, 0, 2_000) == [(900, 905)]
    assert 4 in book
    assert 11 not in book


@given(values=st.lists(st.floats(0, 100), min_size=2, max_size=9))
def test_the_median_of_the_others_leaves_out_one(values):
    others = [median(values[:place] + values[place + 1 :]) for place in range(len(values))]
    assert medians_without(np.array(values)).tolist() == pytest.approx(others)
