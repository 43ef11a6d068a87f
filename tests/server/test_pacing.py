"""Pacing by acknowledgments: fewer batches if there are many processes, or if the store is behind."""

from __future__ import annotations

import pytest

from rl_insight.server.pacing import FlushAdvice
from rl_insight.store.writer import WriterStatus
from rl_insight.transport.ingest_client import CONTENT_TYPE


class Writer:
    """The status of a store's writer, set by a test."""

    lag_s = 0.0
    pending_bytes = 0

    def __call__(self) -> WriterStatus:
        return WriterStatus(
            pending_batches=0, pending_bytes=self.pending_bytes, max_pending_bytes=1000, lag_s=self.lag_s,
            last_commit_s=0.0, longest_commit_s=0.0, commits=0, committed_batches=0, duplicate_batches=0,
            failed_batches=0, refused_batches=0,
        )  # fmt: skip


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("processes", "interval"), [(1, 0.5), (500, 0.5), (2_000, 2.0), (10_000, 10), (50_000, 10)])
def test_the_interval_grows_with_the_processes(processes, interval):
    advice = FlushAdvice(Writer(), Clock())
    assert advice.interval_s(f"p{number}" for number in range(processes)) == interval


def test_processes_that_are_gone_count_for_half_a_minute_at_most():
    clock = Clock()
    advice = FlushAdvice(Writer(), clock)
    advice.interval_s(f"p{number}" for number in range(4_000))
    clock.now = 20.0
    assert advice.interval_s(["p1"]) == 4.0
    clock.now = 40.0
    assert advice.interval_s(["p1"]) == 0.5


@pytest.mark.parametrize("problem", [{"lag_s": 3.0}, {"pending_bytes": 500}])
def test_a_store_that_falls_behind_asks_for_less_and_then_for_more_again(problem):
    clock, writer = Clock(), Writer()
    advice = FlushAdvice(writer, clock)
    vars(writer).update(problem)
    asked = []
    for second in range(1, 14):
        clock.now = float(second)
        if second == 7:
            vars(writer).update(lag_s=0.0, pending_bytes=0)
        asked.append(advice.interval_s(["p1"]))
    assert asked == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0, 4.0, 2.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_a_thread_that_is_busy_with_requests_asks_for_less_until_it_has_time_for_the_page():
    clock, processor = Clock(), Clock()
    advice = FlushAdvice(Writer(), clock, processor)
    asked = []
    for second in range(1, 12):
        # What requests cost goes down as the interval goes up: 0.9 of a core at first.
        cost = 0.9 if second < 8 else 0.1
        processor.now += cost * 0.5 / (asked[-1] if asked else 0.5)
        clock.now = float(second)
        asked.append(advice.interval_s(["p1"]))
    assert asked == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5]


def test_the_acknowledgment_carries_the_interval(client, services, make_batch, frames):
    services.pacing.interval_s(f"p{number}" for number in range(3_000))
    answer = client.post("/api/v1/ingest", content=frames(make_batch(1)), headers={"Content-Type": CONTENT_TYPE})
    assert answer.json() == {"accepted": 1, "duplicates": 0, "flush_s": 3.0}
