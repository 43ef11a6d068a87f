"""Sequence numbers and clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.store.ledger import MAX_RANGES, Ledger, clock_offset, next_delay

MS = 1_000_000


@given(st.lists(st.integers(1, 60), max_size=120), st.lists(st.integers(0, 119), max_size=4))
def test_each_number_is_taken_once_even_when_the_ledger_is_written_and_read_again(numbers, restarts):
    ledger, seen = Ledger(), set()
    for place, number in enumerate(numbers):
        if place in restarts:
            ledger = Ledger(ledger.low_water, ledger.above())
        assert ledger.add(number) == (number not in seen)
        seen.add(number)
    assert set(range(1, ledger.low_water + 1)) <= seen
    assert ledger.low_water + 1 not in seen


def test_gaps_that_are_never_filled_do_not_grow_without_bound():
    ledger = Ledger()
    for number in range(2, 10_000, 2):
        assert ledger.add(number)
    assert ledger.above().count("-") <= MAX_RANGES
    assert not ledger.add(9_998)
    assert not ledger.add(2)
    assert ledger.add(9_999)


@pytest.mark.parametrize(
    ("delays", "offset"),
    [
        ([], 0),
        ([3 * MS, 1 * MS, 40 * MS], 0),
        ([-5_000 * MS], -5_000 * MS),
        ([-5_000 * MS, -4_998 * MS, -5_001 * MS], -5_001 * MS),
        ([3_000 * MS, 3_002 * MS, 3_001 * MS, 3_009 * MS], 3_000 * MS),
        ([3_000 * MS, 3_002 * MS], 0),
        ([60_000 * MS, 59_500 * MS, 59_000 * MS, 58_500 * MS, 2 * MS], 0),
        ([150 * MS] * 10, 0),
    ],
    ids=[
        "unknown",
        "small",
        "ahead",
        "ahead, noisy",
        "behind, steady",
        "not yet sure",
        "replayed spool",
        "slow network",
    ],
)
def test_the_offset_follows_steady_delays_and_not_waiting_batches(delays, offset):
    delay, hits = None, 0
    for seen in delays:
        delay, hits = next_delay(delay, hits, seen)
    assert clock_offset(delay, hits) == offset
