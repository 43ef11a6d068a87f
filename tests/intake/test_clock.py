from __future__ import annotations

import random

import pytest

from rl_insight.collector import Collector
from rl_insight.intake import ClockOffset
from rl_insight.schema import BatchBuilder, Process, encode
from rl_insight.store import queries
from rl_insight.store.run_store import RunStore

MS = 1_000_000
SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def deliver(clock, times, *, offset, delay):
    """Send a batch at each of our times; the process's clock is behind by `offset`."""
    for now in times:
        clock.observe(sent_ns=now - offset(now), received_ns=now + delay(now))


def every_second(first, last):
    return range(START + first * SECOND, START + last * SECOND, SECOND)


def test_there_is_no_estimate_before_the_first_batch():
    assert (ClockOffset().delay_ns, ClockOffset().offset_ns) == (None, 0)


def test_jitter_of_the_delivery_is_filtered_out():
    noise = random.Random(1)
    clock = ClockOffset()
    deliver(
        clock,
        every_second(0, 60),
        offset=lambda _: -3 * SECOND,
        delay=lambda _: int(noise.uniform(0.001, 0.5) * SECOND),
    )
    assert abs(clock.offset_ns + 3 * SECOND) < 0.03 * SECOND


def test_a_replayed_old_batch_does_not_spoil_the_estimate():
    clock = ClockOffset()
    deliver(clock, every_second(0, 10), offset=lambda _: 0, delay=lambda _: 1000)
    clock.observe(sent_ns=START - 3600 * SECOND, received_ns=START + 10 * SECOND)
    assert (clock.delay_ns, clock.offset_ns) == (1000, 0)


def test_a_spool_replayed_after_an_outage_does_not_spoil_the_estimate():
    clock = ClockOffset()
    deliver(clock, every_second(0, 10), offset=lambda _: 0, delay=lambda _: 1000)
    for number in range(300):
        received = START + 7200 * SECOND + number * SECOND // 10
        clock.observe(sent_ns=START + (10 + number) * SECOND, received_ns=received)
    assert (clock.delay_ns, clock.offset_ns) == (1000, 0)
    deliver(clock, every_second(7300, 7310), offset=lambda _: 0, delay=lambda _: 2000)
    assert abs(clock.delay_ns - 1000) <= 1000


def test_a_process_first_seen_through_its_spool_is_corrected_by_the_first_live_batch():
    clock = ClockOffset()
    clock.observe(sent_ns=START, received_ns=START + 3600 * SECOND)
    clock.observe(sent_ns=START + 3601 * SECOND, received_ns=START + 3601 * SECOND + 5)
    assert (clock.delay_ns, clock.offset_ns) == (5, 0)


def test_drift_is_followed_in_both_directions():
    for parts_per_million in (100, -100):
        clock = ClockOffset()

        def offset(now, rate=parts_per_million):
            return (now - START) * rate // 1_000_000

        deliver(clock, every_second(0, 20_000), offset=offset, delay=lambda _: 1_000_000)
        truth = offset(START + 19_999 * SECOND) + 1_000_000
        assert abs(clock.delay_ns - truth) < 0.05 * SECOND
        assert clock.offset_ns == clock.delay_ns


def test_a_clock_that_was_set_back_for_good_is_believed_in_the_end():
    clock = ClockOffset()
    deliver(clock, every_second(0, 100), offset=lambda _: 0, delay=lambda _: 0)
    deliver(clock, every_second(100, 200), offset=lambda _: 50 * SECOND, delay=lambda _: 0)
    assert clock.offset_ns < SECOND
    deliver(clock, every_second(200, 1300), offset=lambda _: 50 * SECOND, delay=lambda _: 0)
    assert clock.offset_ns == 50 * SECOND


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
    clock = ClockOffset()
    for number, delay in enumerate(delays):
        clock.observe(sent_ns=START + number * SECOND - delay, received_ns=START + number * SECOND)
        clock = ClockOffset(clock.delay_ns, clock.hits, START + number * SECOND)  # as after a restart
    assert clock.offset_ns == offset


@pytest.mark.parametrize(("delay_ns", "offset_ns"), [(5 * MS, 0), (150 * MS, 0), (-3 * SECOND, -3 * SECOND)])
def test_hub_and_store_agree_on_the_offset(tmp_path, delay_ns, offset_ns):
    now = START
    collector = Collector(clock=lambda: now)
    process = Process(process_id="p", run_id="r", host="h", pid=1)
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        for number in range(1, 6):
            now += SECOND
            batch = BatchBuilder().build(process, sequence=number, sent_ns=now - delay_ns)
            collector.ingest(encode(batch))
            store.commit([batch], received_ns=[now])
        with store.reader() as cursor:
            (stored,) = queries.processes(cursor, now)
    assert collector.status().processes["p"].clock_offset_ns == stored.clock_offset_ns == offset_ns
