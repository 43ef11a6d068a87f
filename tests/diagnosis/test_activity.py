"""What a process did is kept as intervals that touch no others, and covers the same time."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from rl_insight.diagnosis.activity import _merge
from rl_insight.diagnosis.robust import union

INTERVALS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda one: (one[0], sum(one))), max_size=25)


@given(in_order=INTERVALS.map(lambda found: sorted(found, key=lambda one: one[1])), late=INTERVALS)
def test_merged_intervals_cover_the_same_time(in_order, late):
    kept = deque()
    for start, end in in_order:
        _merge(kept, start, end)
    assert list(kept) == union(in_order)
    for start, end in late:
        _merge(kept, start, end)
    assert union(kept) == union(in_order + late)
