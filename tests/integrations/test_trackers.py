from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from rl_insight.integrations.trackers import InsightLogger, TrackerFeed, TrackerSink, create_tracker, send_to_trackers
from rl_insight.monitor import Monitor
from rl_insight.schema.records import SampleRecord, records


@pytest.fixture
def monitor():
    monitor = Monitor()
    monitor.init(config={"server": {"backend": "memory"}})
    yield monitor
    monitor.finish()


# -- the feed


def test_every_tracker_gets_every_value(list_tracker):
    first, second = list_tracker("a"), list_tracker("b")
    feed = TrackerFeed([first, second])
    feed.log({"x": 1.0}, step=1)
    feed.log({"x": 2.0}, step=2)
    assert feed.flush(20)
    assert first.rows == second.rows == [({"x": 1.0}, 1), ({"x": 2.0}, 2)]
    feed.close()
    assert (first.closed, second.closed) == (1, 1)


def test_slow_tracker_delays_neither_the_caller_nor_the_others(list_tracker):
    slow, quick = list_tracker("slow"), list_tracker("quick")
    slow.gate.clear()
    feed = TrackerFeed([slow, quick], max_queued=3)
    feed.log({"x": 0.0}, step=0)
    assert slow.waiting.wait(20)
    for step in range(1, 11):
        feed.log({"x": float(step)}, step=step)
    assert feed.get_status()["slow"]["dropped"] == 7
    slow.gate.set()
    assert feed.flush(20)
    assert [step for _values, step in slow.rows] == [0, 8, 9, 10]
    feed.close()


def test_tracker_that_fails_is_counted_and_continues(list_tracker, caplog):
    tracker = list_tracker()
    tracker.error = ConnectionError("offline")
    feed = TrackerFeed([tracker])
    for step in range(3):
        feed.log({"x": 1.0}, step)
    assert feed.flush(20)
    tracker.error = None
    feed.log({"x": 1.0}, 3)
    assert feed.flush(20)
    status = feed.get_status()["list"]
    assert (status["failed"], status["written"]) == (3, 1)
    assert sum("offline" in record.getMessage() for record in caplog.records) == 1
    feed.close()


def test_values_after_close_are_dropped_and_counted(list_tracker):
    tracker = list_tracker()
    feed = TrackerFeed([tracker])
    feed.close()
    feed.close()
    feed.log({"x": 1.0}, 1)
    assert feed.get_status()["list"]["dropped"] == 1
    assert tracker.closed == 1


def test_values_may_be_changed_after_the_call(list_tracker):
    tracker = list_tracker()
    tracker.gate.clear()
    feed = TrackerFeed([tracker])
    values = {"x": 1.0}
    feed.log(values, 1)
    values["x"] = 2.0
    tracker.gate.set()
    assert feed.flush(20)
    assert tracker.rows == [({"x": 1.0}, 1)]
    feed.close()


# -- recorded metrics


def test_recorded_metrics_reach_trackers_by_pattern_on_their_step(list_tracker, monitor):
    first, second = list_tracker("a"), list_tracker("b")
    assert send_to_trackers([first, second], ["reward_*", "tokens", "latency"], monitor)
    with monitor.step(7):
        monitor.metric_gauge("reward_mean", 0.5)
        monitor.metric_gauge("reward_mean", 0.75)
        monitor.metric_count("tokens", 512, worker="0")
        monitor.metric_histogram("latency", 2.0)
        monitor.metric_histogram("latency", 4.0)
        monitor.metric_gauge("other", 1.0)
    monitor.finish()
    expected = {"reward_mean": 0.75, "tokens/worker=0": 512.0, "latency.count": 2.0, "latency.mean": 3.0}
    for tracker in (first, second):
        merged = {}
        for values, step in tracker.rows:
            assert step == 7
            merged.update(values)
        assert merged == expected
        assert tracker.closed == 1


def test_trackers_do_not_take_anything_from_the_server(list_tracker, monitor):
    transport = monitor._pipeline.transport
    monitor.metric_gauge("before", 1.0)
    assert monitor.flush(10)
    send_to_trackers([list_tracker()], monitor=monitor)
    monitor.metric_gauge("after", 1.0)
    assert monitor.flush(10)
    metrics = [r.metric for batch in transport.batches for r in records(batch) if isinstance(r, SampleRecord)]
    assert metrics == ["before", "after"]
    assert [batch.sequence for batch in transport.batches] == sorted({batch.sequence for batch in transport.batches})


def test_broken_tracker_does_not_disturb_recording(list_tracker, monitor):
    transport = monitor._pipeline.transport
    tracker = list_tracker()
    tracker.error = RuntimeError("broken")
    send_to_trackers([tracker], monitor=monitor)
    monitor.metric_gauge("x", 1.0)
    assert monitor.flush(10)
    assert len(transport.batches) == 1


def test_status_shows_the_state_of_the_trackers(list_tracker, monitor):
    tracker = list_tracker("slow")
    tracker.gate.clear()
    send_to_trackers([tracker, list_tracker("quick")], monitor=monitor)
    monitor.metric_gauge("x", 1.0)
    assert monitor.flush(10)
    assert tracker.waiting.wait(20)
    (status,) = monitor.get_status()["companions"]
    assert (status["tracker-slow"]["queued"], status["tracker-slow"]["written"]) == (1, 0)
    tracker.gate.set()
    monitor.finish()
    assert tracker.rows == [({"x": 1.0}, None)]


def test_tracker_that_hangs_does_not_hold_up_the_end(list_tracker, monitor, caplog):
    tracker = list_tracker()
    tracker.gate.clear()
    send_to_trackers([tracker], monitor=monitor)
    monitor._pipeline.config.recorder.finish_timeout_s = 0.2
    transport = monitor._pipeline.transport
    monitor.metric_gauge("x", 1.0)
    monitor.finish()
    assert transport.batches[-1].final
    assert any("did not finish" in record.getMessage() for record in caplog.records)
    assert tracker.closed == 0
    tracker.gate.set()


def test_nothing_is_sent_before_init(list_tracker):
    assert send_to_trackers([list_tracker()], monitor=Monitor()) is False


def test_sink_without_a_match_writes_nothing(list_tracker, monitor):
    tracker = list_tracker()
    monitor.metric_gauge("x", 1.0)
    monitor.flush(10)
    sink = TrackerSink(tracker, ["reward_*"])
    sink.write(monitor._pipeline.transport.batches[0])
    assert tracker.rows == []


def test_unknown_tracker_is_refused_with_the_known_names():
    with pytest.raises(ValueError, match="mlflow, swanlab, tensorboard, trackio, wandb"):
        create_tracker("aim")


def test_no_tracker_library_is_imported_before_it_is_used():
    program = (
        "import sys, rl_insight.integrations.trackers, rl_insight.hardware, rl_insight.compat.skyrl;"
        "libraries = 'wandb mlflow trackio swanlab tensorboardX torch ray pynvml'.split();"
        "print([name for name in libraries if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -- the other way


def recorded(monitor):
    assert monitor.flush(10)
    batches = monitor._pipeline.transport.batches
    return {r.metric: (r.value, r.step, r.labels) for b in batches for r in records(b) if isinstance(r, SampleRecord)}


def test_logger_records_what_a_trainer_logs(monitor):
    logger = InsightLogger(monitor, prefix="train/", run="a")
    logger.log({"reward/mean": 0.5, "actor": {"lr": 1e-6}, "done": True}, 7)
    logger.log(data={"late": 2}, step=3)
    logger.log_metrics({"x": 1.0}, step=8)
    logger.finish()
    assert recorded(monitor) == {
        "train_reward_mean": (0.5, 7, {"run": "a"}),
        "train_actor_lr": (1e-6, 7, {"run": "a"}),
        "train_done": (1.0, 7, {"run": "a"}),
        "train_late": (2.0, 3, {"run": "a"}),
        "train_x": (1.0, 8, {"run": "a"}),
    }


def test_logger_skips_and_counts_what_is_not_a_number(monitor):
    logger = InsightLogger(monitor)
    logger.log({"note": "text", "12": "5", "table": [1, 2], "image": object(), "x": 1.0}, step=1, commit=True)
    assert recorded(monitor).keys() == {"x"}
    assert logger.skipped == 4


def test_logger_without_init_is_silent():
    InsightLogger(Monitor()).log({"x": 1.0}, step=1)


def test_logger_from_several_threads_keeps_steps_apart(monitor):
    logger = InsightLogger(monitor)
    threads = [threading.Thread(target=logger.log, args=({f"m{n}": 1.0}, n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert {name: row[1] for name, row in recorded(monitor).items()} == {f"m{n}": n for n in range(8)}
