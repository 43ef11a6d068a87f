from __future__ import annotations

import random

from rl_insight.collector import ClockOffset

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def deliver(clock, times, *, offset, delay):
    """Send a batch at each time of ours; the process's clock is behind by `offset`."""
    for now in times:
        clock.observe(sent_ns=now - offset(now), received_ns=now + delay(now))


def every_second(first, last):
    return range(START + first * SECOND, START + last * SECOND, SECOND)


def test_there_is_no_estimate_before_the_first_batch():
    assert ClockOffset().offset_ns is None


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
    assert clock.offset_ns == 1000


def test_a_spool_replayed_after_an_outage_does_not_spoil_the_estimate():
    clock = ClockOffset(window_s=60)
    deliver(clock, every_second(0, 10), offset=lambda _: 0, delay=lambda _: 1000)
    for number in range(300):
        received = START + 7200 * SECOND + number * SECOND // 10
        clock.observe(sent_ns=START + (10 + number) * SECOND, received_ns=received)
    assert clock.offset_ns == 1000
    deliver(clock, every_second(7300, 7310), offset=lambda _: 0, delay=lambda _: 2000)
    assert abs(clock.offset_ns - 1000) <= 1000


def test_a_process_first_heard_of_through_its_spool_is_corrected_by_the_first_live_batch():
    clock = ClockOffset()
    clock.observe(sent_ns=START, received_ns=START + 3600 * SECOND)
    clock.observe(sent_ns=START + 3601 * SECOND, received_ns=START + 3601 * SECOND + 5)
    assert clock.offset_ns == 5


def test_drift_is_followed_in_both_directions():
    for parts_per_million in (100, -100):
        clock = ClockOffset()

        def offset(now, rate=parts_per_million):
            return (now - START) * rate // 1_000_000

        deliver(clock, every_second(0, 20_000), offset=offset, delay=lambda _: 1_000_000)
        truth = offset(START + 19_999 * SECOND) + 1_000_000
        assert abs(clock.offset_ns - truth) < 0.05 * SECOND


def test_a_clock_that_was_set_back_for_good_is_believed_in_the_end():
    clock = ClockOffset(window_s=60, step_after_s=300)
    deliver(clock, every_second(0, 100), offset=lambda _: 0, delay=lambda _: 0)
    deliver(clock, every_second(100, 200), offset=lambda _: 50 * SECOND, delay=lambda _: 0)
    assert clock.offset_ns < SECOND
    deliver(clock, every_second(200, 600), offset=lambda _: 50 * SECOND, delay=lambda _: 0)
    assert clock.offset_ns == 50 * SECOND
