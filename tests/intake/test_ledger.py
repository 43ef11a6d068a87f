"""Each sequence number is accepted once, in bounded memory, by one algorithm."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from rl_insight.collector import Collector
from rl_insight.intake import Ledger, first_assigned_sequence
from rl_insight.intake.ledger import MAX_GAPS
from rl_insight.schema import BatchBuilder, Process, encode
from rl_insight.store.run_store import RunStore


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
    assert (ledger.batches, ledger.missing) == (len(seen), max(seen, default=0) - len(seen))
    assert ledger.has_gaps == (ledger.missing > 0)


def test_gaps_that_are_never_filled_do_not_grow_without_bound():
    ledger = Ledger()
    for number in range(2, 2 * MAX_GAPS + 1_000, 2):
        assert ledger.add(number)
    assert ledger.above().count("-") == MAX_GAPS
    assert not ledger.add(2)
    assert not ledger.add(1)
    assert ledger.add(2 * MAX_GAPS + 999)
    assert ledger.abandoned == ledger.low_water // 2


def test_gaps_between_assigned_numbers_are_not_missing_batches():
    ledger = Ledger()
    first = first_assigned_sequence()
    for number in range(MAX_GAPS + 3):
        assert ledger.add(first + 1000 * number)
    assert not ledger.add(first)
    assert (ledger.abandoned, ledger.missing, ledger.batches) == (0, 0, MAX_GAPS)


def test_hub_and_store_agree_on_a_batch_that_comes_after_300_gaps(tmp_path):
    process = Process(process_id="p", run_id="r", host="h", pid=1)
    order = [1, *range(3, 605, 2), 2]
    batches = [BatchBuilder().build(process, sequence=number, sent_ns=time.time_ns()) for number in order]
    collector = Collector()
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        stored = store.commit(batches)
    taken = [collector.ingest(encode(batch)).accepted == 1 for batch in batches]
    assert taken == stored == [True] * len(order)
