from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_insight.collector import LedgerEntry, SequenceLedger
from rl_insight.schema.sequences import first_assigned_sequence


@settings(deadline=None)
@given(st.lists(st.integers(1, 60)))
def test_each_sequence_is_claimed_once_in_any_order(sequences):
    ledger = SequenceLedger()
    taken = set()
    for sequence in sequences:
        assert ledger.claim("p", sequence) is (sequence not in taken)
        taken.add(sequence)


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=80))
def test_claims_releases_and_restores_agree_with_a_plain_set(actions):
    ledger, model = SequenceLedger(), set()
    for is_claim, sequence in actions:
        if is_claim:
            assert ledger.claim("p", sequence) is (sequence not in model)
            model.add(sequence)
        else:
            ledger.release("p", sequence)
            model.discard(sequence)
    low_water = next(number for number in range(40) if number + 1 not in model)
    assert ledger.low_water("p") == low_water
    copy = SequenceLedger()
    copy.restore(ledger.snapshot())
    assert [copy.claim("p", sequence) for sequence in range(1, 32)] == [
        sequence not in model for sequence in range(1, 32)
    ]


def test_released_sequence_can_be_claimed_again_and_others_cannot():
    ledger = SequenceLedger()
    for sequence in range(1, 6):
        ledger.claim("p", sequence)
    ledger.release("p", 3)
    assert ledger.low_water("p") == 2
    assert [ledger.claim("p", sequence) for sequence in (2, 3, 4, 5)] == [False, True, False, False]
    assert ledger.low_water("p") == 5


def test_processes_are_told_apart():
    ledger = SequenceLedger()
    assert ledger.claim("a", 1)
    assert ledger.claim("b", 1)
    ledger.release("unknown", 1)
    assert ledger.low_water("unknown") == 0


def test_a_million_batches_in_order_are_one_range():
    ledger = SequenceLedger()
    ledger.restore([LedgerEntry("p", 1_000_000)])
    ledger.claim("p", 1_000_001)
    assert ledger.snapshot() == [LedgerEntry("p", 1_000_001)]


def test_too_many_gaps_give_up_the_oldest_and_count_what_is_missing():
    ledger = SequenceLedger(max_gaps=3)
    for sequence in range(2, 22, 2):
        assert ledger.claim("p", sequence)
    (entry,) = ledger.snapshot()
    assert len(entry.above) <= 4
    assert ledger.given_up > 0
    assert not ledger.claim("p", 1)
    assert not ledger.claim("p", 20)
    assert ledger.claim("p", 19)


def test_ended_processes_are_forgotten_first():
    ledger = SequenceLedger(max_processes=2)
    ledger.claim("old-but-live", 1)
    ledger.claim("ended", 1)
    ledger.end("ended")
    ledger.claim("new", 1)
    assert len(ledger) == 2
    assert not ledger.claim("old-but-live", 1)
    assert not ledger.claim("new", 1)


def test_ended_process_is_still_known_while_there_is_room():
    ledger = SequenceLedger()
    ledger.claim("p", 1)
    ledger.end("p")
    assert not ledger.claim("p", 1)
    assert ledger.snapshot(["p", "unknown"]) == [LedgerEntry("p", 1)]


@pytest.mark.parametrize("sequence", [0, -1])
def test_sequences_below_one_are_refused(sequence):
    with pytest.raises(ValueError, match="count from 1"):
        SequenceLedger().claim("p", sequence)


def test_threads_that_race_for_the_same_sequences_get_each_once():
    ledger = SequenceLedger()
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: ledger.claim("p", number % 500 + 1), range(4000)))
    assert sum(results) == 500
    assert ledger.low_water("p") == 500


def test_gaps_between_numbers_that_a_receiver_gave_are_no_batches_that_are_missing():
    ledger = SequenceLedger(max_gaps=2)
    first = first_assigned_sequence()
    for number in range(10):
        assert ledger.claim("otlp", first + 1000 * number)
    assert ledger.given_up == 0
    assert not ledger.claim("otlp", first)
