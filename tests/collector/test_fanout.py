from __future__ import annotations

import logging
import threading

import pytest

from rl_insight.collector import Sink, SinkRunner
from rl_insight.collector.sinks.memory import MemorySink


class GatedSink(Sink):
    """A sink that blocks in `write` until it is released."""

    name = "gated"

    def __init__(self):
        self.entered = threading.Event()
        self.gate = threading.Event()
        self.sequences = []
        self.closed = threading.Event()

    def write(self, batch):
        self.entered.set()
        self.gate.wait(30)
        self.sequences.append(batch.sequence)

    def close(self):
        self.closed.set()


class FailingSink(Sink):
    name = "failing"

    def __init__(self, *messages):
        self.messages = list(messages)

    def write(self, batch):
        message = self.messages.pop(0)
        if message:
            raise OSError(message)


class GatheringSink(Sink):
    name = "gathering"
    flush_interval_s = 0.05

    def __init__(self):
        self.kept, self.flushed, self.closed = [], [], False

    def write(self, batch):
        self.kept.append(batch.sequence)

    def flush(self):
        assert not self.closed
        self.flushed, self.kept = self.flushed + self.kept, []

    def close(self):
        self.closed = True


def test_batches_arrive_in_order(fake_process):
    sink = MemorySink()
    runner = SinkRunner(sink)
    process = fake_process()
    for _ in range(50):
        runner.put(process.batch(), 10)
    runner.close()
    assert [batch.sequence for batch in sink.batches] == list(range(1, 51))
    assert runner.get_status().written == 50
    assert runner.get_status().queued == 0


@pytest.mark.parametrize(("bounds", "size"), [({"max_batches": 3}, 1), ({"max_bytes": 30}, 10)])
def test_full_queue_drops_the_oldest_and_never_blocks(fake_process, bounds, size):
    sink = GatedSink()
    runner = SinkRunner(sink, **bounds)
    process = fake_process()
    runner.put(process.batch(), size)
    assert sink.entered.wait(10)
    for _ in range(10):
        runner.put(process.batch(), size)
    status = runner.get_status()
    assert (status.queued, status.dropped) == (4, 7)
    sink.gate.set()
    runner.close()
    assert sink.sequences == [1, 9, 10, 11]
    assert runner.get_status().queued_bytes == 0


def test_batch_larger_than_the_bound_is_still_taken_alone(fake_process):
    sink = MemorySink()
    runner = SinkRunner(sink, max_bytes=10)
    runner.put(fake_process().batch(), 100)
    runner.close()
    assert len(sink.batches) == 1


def test_raising_sink_is_counted_logged_once_per_error_and_continues(fake_process, caplog):
    runner = SinkRunner(FailingSink("disk full", "disk full", "gone", ""))
    process = fake_process()
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            runner.put(process.batch())
        runner.close()
    status = runner.get_status()
    assert (status.written, status.failed) == (1, 3)
    assert status.last_error == "OSError: gone"
    assert [("disk full" in text, "gone" in text) for text in caplog.messages] == [(True, False), (False, True)]


def test_gathering_sink_is_flushed_soon_after_the_last_write_and_before_close(fake_process, wait_until):
    sink = GatheringSink()
    runner = SinkRunner(sink)
    process = fake_process()
    runner.put(process.batch())
    wait_until(lambda: sink.flushed == [1])
    sink.flush_interval_s = 3600.0
    runner.put(process.batch())
    runner.close()
    assert sink.flushed == [1, 2]
    assert sink.closed


def test_failing_flush_is_counted(fake_process):
    sink = GatheringSink()

    def flush():
        raise OSError("no route")

    sink.flush = flush
    runner = SinkRunner(sink)
    runner.put(fake_process().batch())
    assert runner.wait_idle(10)
    assert runner.get_status().flush_failures == 1
    assert "no route" in runner.get_status().last_error
    runner.close()


def test_close_gives_up_on_a_stuck_sink_and_counts_what_it_leaves(fake_process, caplog):
    sink = GatedSink()
    runner = SinkRunner(sink)
    process = fake_process()
    runner.put(process.batch())
    assert sink.entered.wait(10)
    runner.put(process.batch())
    runner.close(timeout_s=0.05)
    runner.put(process.batch())
    assert runner.get_status().dropped == 2
    assert "did not finish" in caplog.text
    assert not sink.closed.is_set()
    sink.gate.set()
    assert sink.closed.wait(10)
    runner.close()


def test_wait_idle_reports_whether_everything_was_written(fake_process):
    sink = GatedSink()
    runner = SinkRunner(sink)
    runner.put(fake_process().batch())
    assert not runner.wait_idle(0.05)
    sink.gate.set()
    assert runner.wait_idle(10)
    runner.close()


def test_status_survives_a_sink_whose_status_fails(fake_process):
    sink = MemorySink()

    def get_status():
        raise RuntimeError("broken")

    sink.get_status = get_status
    runner = SinkRunner(sink)
    assert "broken" in runner.get_status().details["error"]
    runner.close()
