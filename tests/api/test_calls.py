"""Events, logs, steps, the logging handler, and calls while nothing is recorded."""

from __future__ import annotations

import asyncio
import logging
import threading

import numpy as np
import pytest

import rl_insight as insight
from rl_insight.recorder.decorators import NoState
from rl_insight.recorder.session_producer import nothing_to_join
from rl_insight.recorder.spans import NO_SPAN
from rl_insight.testing import FakeClock


def test_event_is_attached_to_the_current_span_and_lane(insight_capture):
    with insight.trace_state("rollout", "lane_1"), insight.trace_span("generate"), insight.step(4):
        insight.trace_event("weights_received", version=7, name="n", self_="s")
    event, span = insight_capture.events[0], insight_capture.span("generate")
    assert (event.name, event.attributes) == ("weights_received", {"version": 7, "name": "n", "self_": "s"})
    assert (event.span_id, event.trace_id, event.lane, event.step) == (span.span_id, span.trace_id, "lane_1", 4)
    assert event.time_ns == insight_capture.clock.wall_ns()
    assert event.process_id == insight_capture.process.process_id


def test_event_without_a_span(insight_capture):
    insight.trace_event("alone")
    event = insight_capture.events[0]
    assert (event.span_id, event.trace_id, event.lane, event.step) == (None, None, None, None)


@pytest.mark.parametrize(
    ("level", "number"),
    [("debug", 10), ("INFO", 20), ("warn", 30), ("Warning", 30), ("critical", 50), (35, 35), (0, 0), ("nonsense", 20),
     (None, 20), (1.5, 20), (10**30, 20)],
)  # fmt: skip
def test_log_levels_by_name_and_number(insight_capture, level, number):
    insight.log(level, "reward is NaN", sample=17, message="kept apart", level="field")
    line = insight_capture.logs[0]
    assert (line.level, line.message) == (number, "reward is NaN")
    assert line.attributes["sample"] == 17


def test_log_carries_the_context(insight_capture):
    with insight.trace_state("rollout", "l"), insight.step(2):
        insight.log("info", "x")
    line, state = insight_capture.logs[0], insight_capture.span("rollout")
    assert (line.span_id, line.lane, line.step) == (state.span_id, "l", 2)


@pytest.mark.parametrize("message", [None, 7, ["a"], object])
def test_message_of_any_type_becomes_text(insight_capture, message):
    insight.log("info", message)
    assert insight_capture.logs[0].message == str(message)


# -- the handler


@pytest.fixture
def logger():
    made = logging.Logger("test_calls.loop")  # noqa: LOG001  # of no hierarchy, so that no other handler sees its lines
    made.addHandler(insight.InsightHandler())
    return made


def test_handler_records_message_logger_and_extra_fields(insight_capture, logger):
    with insight.trace_span("update"), insight.step(3):
        logger.warning("reward is %s", "NaN", extra={"sample": 17})
    line = insight_capture.logs[0]
    assert (line.message, line.level, line.logger, line.step) == ("reward is NaN", 30, "test_calls.loop", 3)
    assert line.span_id == insight_capture.span("update").span_id
    assert line.attributes["sample"] == 17
    assert line.attributes["code.location"].startswith(__file__)
    assert set(line.attributes) == {"sample", "code.location"}


def test_fields_of_a_library_s_record_class_are_left_out(insight_capture, logger):
    made = logging.getLogRecordFactory()

    def factory(*arguments, **others):  # as Ray's does as soon as it is imported
        record = made(*arguments, **others)
        record._ray_timestamp_ns = 1
        return record

    logging.setLogRecordFactory(factory)
    try:
        logger.warning("slow", extra={"sample": 17})
    finally:
        logging.setLogRecordFactory(made)
    assert set(insight_capture.logs[0].attributes) == {"sample", "code.location"}


def test_handler_records_exceptions(insight_capture, logger):
    try:
        raise ValueError("broken")
    except ValueError:
        logger.exception("it failed")
    attributes = insight_capture.logs[0].attributes
    assert attributes["exception.type"] == "ValueError"
    assert "ValueError: broken" in attributes["exception.stacktrace"]


def test_handler_survives_exc_info_without_an_exception(insight_capture, logger):
    logger.error("nothing", exc_info=True)  # noqa: LOG014  # a mistake that users make
    assert "exception.type" not in insight_capture.logs[0].attributes


class NoText:
    def __str__(self):
        raise RuntimeError("no")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("message", "args", "recorded"),
    [
        ("a %s b", (), "a %s b"),
        ("%d", ("x",), "%d"),
        ("%s %s", (1,), "%s %s"),
        ("%s", (NoText(),), "%s"),
        (NoText(), (), "<NoText>"),
    ],
)
def test_arguments_that_do_not_fit_are_survived(insight_capture, logger, message, args, recorded):
    logger.info(message, *args)
    assert insight_capture.logs[0].message == recorded


def test_handler_respects_its_level(insight_capture, logger):
    logger.handlers[0].setLevel(logging.ERROR)
    logger.warning("quiet")
    logger.error("loud")
    assert [line.message for line in insight_capture.logs] == ["loud"]


@pytest.mark.parametrize("name", ["rl_insight", "rl_insight.transport"])
def test_own_log_lines_are_not_recorded(insight_capture, name):
    handler = insight.InsightHandler()
    handler.handle(logging.LogRecord(name, logging.ERROR, __file__, 1, "own", (), None))
    handler.handle(logging.LogRecord("rl_insightful", logging.ERROR, __file__, 1, "not own", (), None))
    assert [line.message for line in insight_capture.logs] == ["not own"]


def test_handler_on_the_root_logger_cannot_feed_itself(insight_capture):
    handler = insight.InsightHandler()
    logging.getLogger().addHandler(handler)
    try:
        insight.metric_count("c", -1)  # makes a warning of our own
        insight_capture.flush()
    finally:
        logging.getLogger().removeHandler(handler)
    assert insight_capture.logs == []
    assert insight_capture.losses == {"metrics/bad_amount": 1}


def test_handler_can_have_a_monitor_of_its_own(insight_capture):
    from rl_insight.testing import CaptureMonitor

    own = CaptureMonitor()
    insight.InsightHandler(monitor=own).handle(logging.makeLogRecord({"name": "x", "msg": "mine", "levelno": 20}))
    assert [line.message for line in own.logs] == ["mine"]
    assert insight_capture.logs == []
    own.finish()


# -- steps


def test_set_step_applies_to_everything_until_the_next(insight_capture):
    insight.set_step(1)
    insight.metric_gauge("g", 1.0)
    with insight.trace_span("s"):
        insight.set_step(2)
        insight.trace_event("e")
    insight.log("info", "l")
    assert insight_capture.metric("g").step == 1
    assert insight_capture.span("s").step == 1
    assert insight_capture.events[0].step == insight_capture.logs[0].step == 2


def test_set_step_holds_in_all_threads(insight_capture):
    insight.set_step(5)
    thread = threading.Thread(target=insight.trace_event, args=("e",))
    thread.start()
    thread.join()
    assert insight_capture.events[0].step == 5


def test_step_block_beats_set_step_and_ends(insight_capture):
    insight.set_step(1)
    with insight.step(7):
        insight.trace_event("inside")
        with insight.step(8):
            insight.trace_event("deeper")
    insight.trace_event("after")
    assert [event.step for event in insight_capture.events] == [7, 8, 1]


def test_step_block_follows_tasks_and_works_with_async_with(insight_capture):
    async def work():
        await asyncio.sleep(0)
        insight.trace_event("in task")

    async def main():
        async with insight.step(3):
            task = asyncio.create_task(work())
        await task
        insight.trace_event("after")

    asyncio.run(main())
    assert [event.step for event in insight_capture.events] == [3, None]


@pytest.mark.parametrize("number", [np.int64(7), 0, -1])
def test_integers_of_any_type_are_steps(insight_capture, number):
    with insight.step(number):
        insight.trace_event("e")
    insight.set_step(number)
    insight.trace_event("f")
    assert [event.step for event in insight_capture.events] == [int(number)] * 2


@pytest.mark.parametrize("number", [1.5, "7", None, True, 2**56, -(2**63), NoText()])
def test_bad_step_is_refused_counted_and_warned(insight_capture, caplog, number):
    insight.set_step(number)
    with insight.step(number):
        insight.trace_event("e")
    assert insight_capture.events[0].step is None
    assert insight_capture.losses == {"steps/bad_step": 2}
    assert caplog.records


def test_refused_step_is_shown_as_what_it_is(insight_capture, caplog):
    insight.set_step("7")
    assert "set_step('7') was refused: a step must be an integer below 2**56." in caplog.text


def test_a_label_may_be_named_self(insight_capture):
    insight.metric_count("rollouts", self="0")
    with insight.trace_state("rollout", self="0"):
        pass
    assert insight_capture.metric("rollouts").labels == {"self": "0"}
    assert insight_capture.span("rollout").attributes == {"self": "0"}


# -- while nothing is recorded


def test_disabled_calls_read_no_clock_and_call_nothing_back(monkeypatch):
    import time

    clock = FakeClock()
    calls = []
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"):
        monkeypatch.setattr(time, name, lambda: calls.append("clock") or 0)
    monitor = insight.metric_count.__self__
    monkeypatch.setattr(monitor, "_join", nothing_to_join)
    assert monitor._recorder is None

    @insight.trace_op("f", extra_labels=lambda _: calls.append("labels") or {})
    def function(): ...

    insight.metric_count("c", 1, a="b")
    insight.metric_gauge("g", NoText())
    insight.metric_histogram("h", 1.0)
    assert isinstance(insight.trace_state("s", "l", a=1), NoState)
    assert insight.trace_span("s", {"a": 1}) is NO_SPAN
    assert insight.step(1) is NO_SPAN
    insight.trace_event("e")
    insight.log("info", "x")
    insight.set_step(1)
    function()
    insight.InsightHandler().handle(logging.LogRecord("x", 20, "", 0, "", (), None))
    monkeypatch.undo()
    assert calls == ["clock"]  # the one that LogRecord itself reads
    assert clock.readings == 0


def test_disabled_spans_take_every_call():
    async def main():
        async with insight.trace_span("s") as span:
            span.set_attribute("a", 1)
        async with insight.trace_state("s"), insight.step(1):
            pass

    with insight.trace_span("s") as span:
        span.set_attribute("a", 1)
        span.set_status("error", "x")
        span.finish()
    with insight.step(3), insight.trace_state("s"):
        assert insight.inject() == {}
    asyncio.run(main())


def test_disabled_exceptions_propagate_unchanged():
    error = ValueError("x")
    with pytest.raises(ValueError) as caught, insight.trace_span("s"), insight.trace_state("t"), insight.step(1):
        raise error
    assert caught.value is error
