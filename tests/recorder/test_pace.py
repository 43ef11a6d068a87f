"""A process flushes as rarely as the server requests; failures and stuck work are still reported."""

from __future__ import annotations

import logging
import time

import pytest

from rl_insight.config.model import RecorderConfig
from rl_insight.monitor import Monitor
from rl_insight.recorder.pace import FlushPace
from rl_insight.schema import Process
from rl_insight.schema.records import records


@pytest.mark.parametrize(
    ("wanted", "followed"), [(0.0, 0.5), (0.1, 0.5), (3.0, 3.0), (60.0, 10.0), (float("nan"), 0.5), (float("inf"), 0.5)]
)
def test_the_interval_is_bounded_by_the_settings(wanted, followed):
    pace = FlushPace(RecorderConfig(flush_interval_s=0.5, max_flush_interval_s=10.0))
    pace.follow(wanted)
    assert pace.interval_s == followed
    pace.follow(0.0)
    assert pace.interval_s == 0.5


def test_an_interval_longer_than_the_bound_is_the_process_own():
    pace = FlushPace(RecorderConfig(flush_interval_s=30.0, max_flush_interval_s=10.0))
    pace.follow(5.0)
    assert pace.interval_s == 30.0


def test_a_process_that_sends_less_often_may_be_silent_for_longer():
    pace = FlushPace(RecorderConfig(heartbeat_s=5.0))
    process = Process(process_id="p", run_id="r", host="h", pid=1, heartbeat_s=5.0)
    assert pace.with_heartbeat(process) is process
    pace.follow(8.0)
    assert pace.with_heartbeat(process).heartbeat_s == 8.0
    pace.follow(0.0)
    assert pace.with_heartbeat(process) is process


def test_stuck_work_is_reported_early_once_in_an_interval_and_failures_once_in_a_second():
    pace = FlushPace(RecorderConfig())
    pace.follow(10.0)
    assert [pace.is_early(is_failing=False, is_stuck=True) for _ in range(2)] == [True, False]
    assert [pace.is_early(is_failing=True, is_stuck=True) for _ in range(2)] == [True, False]


@pytest.fixture
def slowed():
    """A monitor whose server has requested one batch per hour, and a function that waits for records."""
    monitor = Monitor()
    config = {"server": {"backend": "memory"}, "recorder": {"flush_interval_s": 0.05, "max_flush_interval_s": 3600}}
    monitor.init("project", "experiment", config)
    pipeline = monitor._pipeline
    monitor.trace_event("first")
    monitor.flush(10)
    pipeline.transport.on_flush_interval(3600.0)
    monitor.flush(10)
    pipeline.transport.clear()

    def arrived():
        return [record for batch in pipeline.transport.batches for record in records(batch)]

    def wait_for(kind):
        until = time.monotonic() + 20
        while time.monotonic() < until:
            found = [record for record in arrived() if type(record).__name__ == kind]
            if found:
                return found
            time.sleep(0.01)
        raise AssertionError(f"no {kind} arrived")

    monitor.wait_for, monitor.arrived = wait_for, arrived
    yield monitor
    monitor.finish()


def test_ordinary_work_waits_for_the_flush(slowed):
    for _ in range(3):
        with slowed.trace_span("work"):
            pass
    recorder = slowed._pipeline.recorder
    until = time.monotonic() + 20
    while recorder.spans and time.monotonic() < until:
        time.sleep(0.01)
    assert (len(recorder.spans), slowed.arrived()) == (0, [])
    slowed.flush(10)
    assert len(slowed.wait_for("SpanRecord")) == 3


def test_a_failed_span_is_reported_at_once(slowed):
    with pytest.raises(ValueError, match="boom"), slowed.trace_span("work"):
        raise ValueError("boom")
    assert [span.error for span in slowed.wait_for("SpanRecord")] == ["ValueError"]


def test_an_error_in_the_log_is_reported_at_once(slowed):
    slowed.log(logging.INFO, "going well")
    slowed.log(logging.ERROR, "out of memory")
    assert [line.message for line in slowed.wait_for("LogRecord")] == ["going well", "out of memory"]


def test_a_failed_session_is_reported_at_once(slowed):
    session = slowed.session(task_id="t").submit()
    session.finalize("failed", reason="tool crashed")
    assert slowed.wait_for("SessionSnapshot")[-1].status == "failed"


def test_work_that_does_not_end_is_reported_early(slowed):
    with slowed.trace_span("stuck"):
        assert [(span.name, span.status) for span in slowed.wait_for("SpanRecord")] == [("stuck", "open")]
