from __future__ import annotations

import pytest

from rl_insight.hardware import Reading
from rl_insight.hardware.recording import ReadingRecorder
from rl_insight.monitor import Monitor
from rl_insight.schema.records import SampleRecord, records


@pytest.fixture
def make_monitor():
    made = []

    def make(**recorder):
        monitor = Monitor()
        monitor.init(config={"server": {"backend": "memory"}, "recorder": recorder})
        made.append(monitor)
        return monitor

    yield make
    for monitor in made:
        monitor.finish()


def gpu(index="0", **values):
    return Reading(node="n", host="h", kind="gpu", index=index, values=values)


def recorded(monitor):
    assert monitor.flush(20)
    batches = monitor._pipeline.transport.batches
    return [record for batch in batches for record in records(batch) if isinstance(record, SampleRecord)]


def test_readings_taken_together_have_one_time_and_the_step(make_monitor):
    monitor = make_monitor()
    with monitor.step(7):
        ReadingRecorder(monitor).record("test", [gpu(utilization_ratio=0.5, power_watts=300.0)])
    found = recorded(monitor)
    assert {(row.metric, row.value, row.step) for row in found} == {
        ("gpu_utilization_ratio", 0.5, 7),
        ("gpu_power_watts", 300.0, 7),
    }
    assert len({row.time_ns for row in found}) == 1
    assert found[0].labels == {"source": "test", "node": "n", "host": "h", "gpu": "0"}


def test_labels_that_are_equal_make_one_series_whoever_keeps_them(make_monitor):
    monitor = make_monitor()
    for _ in range(2):
        ReadingRecorder(monitor).record("test", [gpu(utilization_ratio=0.5)])
    monitor.metric_gauge("gpu_utilization_ratio", 0.75, source="test", node="n", host="h", gpu="0")
    assert monitor.flush(20)
    (batch,) = monitor._pipeline.transport.batches
    assert len(batch.series) == 1
    assert [row.value for row in recorded(monitor)] == [0.5, 0.5, 0.75]


def test_steady_quantity_is_recorded_when_it_changes(make_monitor):
    monitor = make_monitor()
    recorder = ReadingRecorder(monitor)
    for total in (80.0, 80.0, 96.0):
        recorder.record("test", [gpu(memory_total_bytes=total)])
    assert [row.value for row in recorded(monitor)] == [80.0, 96.0]


def test_total_that_was_reset_continues_from_there(make_monitor):
    monitor = make_monitor()
    recorder = ReadingRecorder(monitor)
    for total in (100.0, 130.0, 5.0, 25.0):
        recorder.record("test", [gpu(energy_joules=total)])
    assert recorded(monitor)[-1].value == 50.0


def test_what_the_buffer_cannot_hold_is_dropped_and_counted(make_monitor):
    monitor = make_monitor(max_metrics=100, flush_interval_s=60.0)
    recorder = monitor._pipeline.flusher.recorder
    many = [("gpu_power_watts", float(number), "") for number in range(350)]
    monitor._pipeline.flusher.stop(20)  # nobody empties the buffer
    recorder.watermark = 100
    monitor._record_gauges(many, {"gpu": "0"})
    assert len(recorder.metrics) == 100
    assert sum(loss.count for loss in recorder.losses.snapshot() if loss.reason == "buffer_full") == 250


def test_nothing_is_recorded_before_init():
    monitor = Monitor()
    ReadingRecorder(monitor).record("test", [gpu(utilization_ratio=0.5)])
    assert monitor._recorder is None
