"""Bounded buffers, the losses they count, and the flusher that empties them."""

from __future__ import annotations

import threading
import time
from collections import deque
from marshal import dumps
from types import SimpleNamespace

import pytest

import rl_insight as insight
from rl_insight.config import load_config
from rl_insight.recorder import metrics
from rl_insight.recorder.clock import Clock
from rl_insight.recorder.flusher import Flusher
from rl_insight.recorder.recorder import CounterEvent, Recorder
from rl_insight.schema import Process, decode
from rl_insight.testing import CaptureMonitor, InternalError, capture

SMALL = {"max_metrics": 5, "max_spans": 5, "max_records": 5}


@pytest.mark.parametrize(("drop", "kept"), [("newest", range(5)), ("oldest", range(7, 12))])
def test_full_buffers_drop_by_policy_and_count(drop, kept):
    with capture({"recorder": {**SMALL, "drop": drop}}) as captured:
        for number in range(12):
            insight.metric_gauge("g", number)
            with insight.trace_span(f"s{number}"):
                pass
            insight.trace_event(f"e{number}")
        assert [record.value for record in captured.metrics] == [float(n) for n in kept]
        assert [span.name for span in captured.spans] == [f"s{n}" for n in kept]
        assert [event.name for event in captured.events] == [f"e{n}" for n in kept]
    assert captured.losses == {"metrics/buffer_full": 7, "spans/buffer_full": 7, "events/buffer_full": 7}


def test_dropped_log_lines_are_counted_as_logs():
    with capture({"recorder": SMALL}) as captured:
        for _ in range(8):
            insight.log("info", "x")
    assert captured.losses == {"logs/buffer_full": 3}


def test_losses_travel_with_the_next_batch():
    with capture({"recorder": SMALL}) as captured:
        for _ in range(8):
            insight.metric_count("c")
        losses = [(r.kind, r.reason, r.count) for r in captured.records if type(r).__name__ == "LossRecord"]
    assert losses == [("metrics", "buffer_full", 3)]


def test_room_comes_back_after_a_flush():
    with capture({"recorder": SMALL}) as captured:
        for _ in range(4):
            for _ in range(5):
                insight.metric_count("c")
            captured.flush()
        assert captured.value("c") == 20.0
    assert captured.losses == {}


def start_flusher(recorder, sent, *, limit=1_000_000, **settings):
    config = load_config({"recorder": {"flush_interval_s": 60, **settings}}, environ={})
    process = Process(process_id="p", run_id="r", host="h", pid=1)
    flusher = Flusher(recorder, process, config, lambda payload: sent.append(decode(payload)), limit)
    flusher.start()
    return flusher


def test_burst_is_drained_long_before_the_interval_and_batches_stay_small():
    recorder, sent = Recorder(), []
    flusher = start_flusher(recorder, sent)
    monitor = CaptureMonitor()
    monitor._recorder = recorder
    for number in range(20_000):
        monitor.trace_event("e", number=number)
    assert flusher.stop(60)
    assert sum(len(batch.events) for batch in sent) == 20_000
    assert max(len(batch.events) for batch in sent) < 4_000
    assert recorder.losses.snapshot() == []


def test_batches_keep_to_the_transports_size():
    recorder, sent = Recorder(), []
    flusher = start_flusher(recorder, sent, limit=50_000)
    monitor = CaptureMonitor()
    monitor._recorder = recorder
    for number in range(500):
        monitor.log("info", f"{number}" * 300)
    flusher.stop(60)
    assert len(sent) > 3
    assert sum(len(batch.logs) for batch in sent) == 500


def test_sequence_numbers_have_no_gaps_and_the_last_batch_says_so():
    recorder, sent = Recorder(), []
    flusher = start_flusher(recorder, sent)
    assert flusher.request_flush(30)
    recorder.record_point("event", 0, "e", {})
    assert flusher.request_flush(30)
    assert flusher.stop(30)
    assert [batch.sequence for batch in sent] == list(range(1, len(sent) + 1))
    assert [batch.final for batch in sent] == [False] * (len(sent) - 1) + [True]


def test_silent_process_sends_heartbeats():
    with capture({"recorder": {"heartbeat_s": 5}}) as captured:
        insight.metric_count("c")
        captured.flush()
        before = len(captured._transport.payloads)
        captured.clock.advance(4)
        captured.flush()
        assert len(captured._transport.payloads) == before
        captured.clock.advance(1)
        captured.flush()
        assert len(captured._transport.payloads) == before + 1


def test_lost_batch_is_healed_for_counters():
    with capture() as captured:
        insight.metric_count("c", 3)
        captured.flush()
        captured._transport.clear()
        captured._transport.on_loss("batches", "spool_full", 1)
        assert captured.value("c") == 3.0
    assert captured.losses == {"batches/spool_full": 1}


def test_defect_while_sending_costs_one_batch_and_not_the_thread(caplog):
    recorder, sent = Recorder(), []
    fail = threading.Event()
    fail.set()
    flusher = start_flusher(recorder, sent)
    send = flusher._send

    def unreliable(payload):
        if fail.is_set():
            raise RuntimeError("defect")
        send(payload)

    flusher._send = unreliable
    recorder.metrics.append(CounterEvent("c", 1.0, {}, "", None))
    assert flusher.request_flush(30)
    fail.clear()
    assert flusher.request_flush(30)
    assert flusher.stop(30)
    assert [len(batch.samples) for batch in sent if len(batch.samples)] == [1]
    assert [(loss.kind, loss.reason, loss.count) for loss in recorder.losses.snapshot()] == [
        ("batches", "internal_error", 1)
    ]
    assert "internal error" in caplog.text


def test_one_strange_event_costs_only_itself_and_fails_a_captured_test(caplog):
    with pytest.raises(InternalError, match="Traceback"), capture() as captured:  # noqa: PT012  # raised at the end
        captured._recorder.metrics.append(("no", "such", "tuple"))
        insight.metric_count("c")
        assert captured.value("c") == 1.0
    assert captured.losses == {"events/internal_error": 1}


def test_one_strange_span_costs_only_itself(caplog):
    with pytest.raises(InternalError, match="Traceback"), capture() as captured:  # noqa: PT012  # raised at the end
        for number in range(200):
            if number == 77:
                captured._recorder.spans.append(SimpleNamespace(end=1))
            with insight.trace_span("work", {"number": number}):
                pass
        assert [span.attributes["number"] for span in captured.spans] == list(range(200))
    assert captured.losses == {"events/internal_error": 1}


def test_the_watermark_rises_with_a_buffer_that_fills_and_falls_when_it_is_emptied():
    recorder = Recorder(load_config({"recorder": {"max_metrics": 5_000}}, environ={}).recorder)
    usual, looks = recorder.watermark, 0
    for number in range(1, 7_001):
        recorder.metrics.append(number)
        if len(recorder.metrics) > recorder.watermark:
            looks += 1
            recorder.relieve(recorder.metrics, "metrics", recorder.max_metrics)
    assert len(recorder.metrics) == 5_000
    assert recorder.watermark == 5_000
    assert looks < 2_000 + 3_000 / 50, "past the limit at each event, before it only now and then"
    recorder.lower_watermark()
    assert recorder.watermark == usual


def test_warnings_come_once_a_topic_and_are_bounded(caplog):
    recorder = Recorder()
    for number in range(3000):
        recorder.losses.refuse("k", "r", f"message {number}", topic=str(number))
        recorder.losses.refuse("k", "r", f"message {number}", topic=str(number))
    assert len(caplog.records) == 1000
    assert recorder.losses.snapshot()[0].count == 6000


def test_failure_at_every_flush_backs_off(caplog):
    def refuse(*_arguments):
        raise OverflowError("a batch that cannot be sent")

    recorder = Recorder()
    config = load_config({"recorder": {"flush_interval_s": 0.05}}, environ={})
    flusher = Flusher(recorder, Process(process_id="p", run_id="r", host="h", pid=1), config, refuse, 1_000_000)
    flusher.start()
    time.sleep(1.5)
    assert flusher.stop(10)
    failures = next(loss.count for loss in recorder.losses.snapshot() if loss.reason == "internal_error")
    assert 2 <= failures <= 7  # after pauses of 0.1, 0.2, 0.4, 0.8 s


def test_clock_past_the_end_of_time_still_makes_batches():
    sent = []
    clock = Clock(wall=lambda: 2**63 + time.time_ns())
    flusher = start_flusher(Recorder(clock=clock), sent)
    flusher.recorder.record_point("event", 0, "e", {})
    assert flusher.stop(10)
    assert [len(batch.events) for batch in sent] == [1]
    assert 0 < sent[0].sent_ns < 2**63


LONG = "x" * 10_000_000


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(lambda: insight.trace_span(LONG).__enter__().finish(), id="span"),
        pytest.param(lambda: insight.trace_event(LONG), id="event"),
        pytest.param(lambda: insight.trace_event("e", note=LONG), id="attribute"),
        pytest.param(lambda: insight.trace_event("e", note="\xe9" * 10_000_000), id="not-ascii"),
        pytest.param(lambda: insight.trace_event("e", note=LONG.encode()), id="bytes"),
        pytest.param(lambda: insight.trace_event("e", note=[0] * 3_000_000), id="list"),
        pytest.param(lambda: insight.trace_event("e", **{LONG: 1}), id="key"),
        pytest.param(lambda: insight.trace_event("e", api_key=LONG), id="secret"),
        pytest.param(lambda: insight.log("info", LONG), id="log"),
        pytest.param(lambda: insight.metric_count("c", note=LONG), id="label"),
        pytest.param(lambda: insight.metric_count("c", **{LONG: 1}), id="label-name"),
        pytest.param(lambda: insight.metric_count(LONG), id="metric"),
        pytest.param(lambda: insight.metric_count("c", documentation=LONG), id="documentation"),
        pytest.param(lambda: insight.metric_count(LONG, object()), id="refused"),
        pytest.param(lambda: insight.trace_state("s", LONG).__enter__().finish(), id="lane"),
        pytest.param(lambda: insight.session(LONG, session_id=LONG).submit(), id="session"),
    ],
)
def test_text_of_any_size_is_cut_before_it_costs_time(record):
    with capture() as captured:
        record()
        captured.flush()
        times = []
        for _ in range(3):
            record()
            begun = time.thread_time()
            captured.flush()
            times.append(time.thread_time() - begun)
        assert sum(len(text) for batch in captured._transport.batches for text in batch.strings) < 2_000_000
    # Redaction alone takes 2 s for such a text; cutting it takes well under this, on a slow machine too.
    assert min(times) < 0.1


class Wide(list):
    """A large container that counts how often it is serialized."""

    written = 0

    def __repr__(self):
        type(self).written += 1
        return super().__repr__()


def _deep(value):
    for _ in range(8):
        value = [value]
    return value


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(lambda value: insight.metric_count("c", note=value), id="label"),
        pytest.param(lambda value: insight.metric_count("c", note=(1, {"a": value})), id="inside-a-label"),
        pytest.param(lambda value: insight.trace_event("e", note=_deep(value)), id="deep-attribute"),
        pytest.param(lambda value: insight.trace_event("e", note={value.__class__: deque(value)}), id="deque"),
        pytest.param(insight.trace_event, id="event"),
        pytest.param(lambda value: insight.trace_span(value).__enter__().finish(), id="span"),
        pytest.param(lambda value: insight.trace_span("s", lane=value).__enter__().finish(), id="lane"),
        pytest.param(lambda value: insight.log("info", value), id="log"),
        pytest.param(lambda value: insight.session("task", session_id=value).submit(), id="session"),
    ],
)
def test_large_container_is_never_written_out(record):
    with capture() as captured:
        Wide.written = 0
        record(Wide([0] * 5_000))
        captured.flush()
        written = [text for batch in captured._transport.batches for text in batch.strings]
        assert Wide.written == 0
        assert not any("0, 0, 0" in text for text in written)


@pytest.mark.parametrize("small", [[1, "a"], {"a": (1.5, None)}, {"x"}], ids=["list", "dict", "set"])
def test_small_container_is_a_label_as_it_prints(small):
    with capture() as captured:
        insight.metric_count("c", note=small)
        assert captured.value("c", note=str(small)) == 1.0


def test_long_label_is_not_even_copied_to_find_its_series(monkeypatch):
    copied = []
    monkeypatch.setattr(metrics, "_exact_form", lambda labels, version: copied.append(labels) or dumps(labels, version))
    with capture() as captured:
        insight.metric_count("c", note=LONG, rank=1)
        insight.metric_count("c", rank=1)
        captured.flush()
    assert copied == [{"rank": 1}]
