from __future__ import annotations

import asyncio
import contextvars
import gc
import random
import threading
import weakref

import pytest

import rl_insight as insight
from rl_insight.testing import CaptureMonitor, capture


def test_span_has_name_duration_attributes_and_process(insight_capture):
    with insight.trace_span("generate", {"tokens": 512}) as span:
        insight_capture.clock.advance(1.5)
        span.set_attribute("finish_reason", "stop")
    record = insight_capture.span("generate")
    assert (record.duration_ns, record.segment, record.status) == (1_500_000_000, "duration", "ok")
    assert record.attributes == {"tokens": 512, "finish_reason": "stop"}
    assert record.process_id == insight_capture.process.process_id
    assert record.start_ns == insight_capture.clock.wall_ns() - 1_500_000_000


def test_attributes_are_taken_when_the_span_begins(insight_capture):
    attributes = {"tokens": 1}
    with insight.trace_span("generate", attributes) as span:
        attributes["tokens"] = 2
        span.set_attribute("more", 1)
    assert attributes == {"tokens": 2}
    assert insight_capture.span("generate").attributes == {"tokens": 1, "more": 1}


def test_nested_spans_get_their_parents(insight_capture):
    with insight.trace_span("a"):
        with insight.trace_span("b"), insight.trace_span("c"):
            pass
        with insight.trace_span("d"):
            pass
    a, b, c, d = (insight_capture.span(name) for name in "abcd")
    assert (a.parent_id, b.parent_id, c.parent_id, d.parent_id) == (None, a.span_id, b.span_id, a.span_id)
    assert len({s.trace_id for s in (a, b, c, d)}) == 1


def test_roots_have_traces_of_their_own(insight_capture):
    for _ in range(3):
        with insight.trace_span("root"):
            pass
    assert len({span.trace_id for span in insight_capture.spans}) == 3


def test_parents_follow_asyncio_tasks(insight_capture):
    async def child(number):
        with insight.trace_span(f"child {number}"):
            await asyncio.sleep(0)
            with insight.trace_span(f"grandchild {number}"):
                await asyncio.sleep(0)

    async def main():
        with insight.trace_span("parent"):
            await asyncio.gather(*(child(number) for number in range(5)))

    asyncio.run(main())
    parent = insight_capture.span("parent")
    for number in range(5):
        own = insight_capture.span(f"child {number}")
        assert own.parent_id == parent.span_id
        assert insight_capture.span(f"grandchild {number}").parent_id == own.span_id


def test_parents_follow_a_copied_context_into_a_thread_and_no_other(insight_capture):
    def work(name):
        with insight.trace_span(name):
            pass

    with insight.trace_span("parent"):
        context = contextvars.copy_context()
        threads = [
            threading.Thread(target=context.run, args=(work, "copied")),
            threading.Thread(target=work, args=("alone",)),
        ]
        for thread in threads:
            thread.start()
            thread.join()
    assert insight_capture.span("copied").parent_id == insight_capture.span("parent").span_id
    assert insight_capture.span("alone").parent_id is None


def test_exception_fails_the_span_and_propagates_unchanged(insight_capture):
    error = ValueError("no")
    with pytest.raises(ValueError) as caught, insight.trace_span("generate"):
        raise error
    assert caught.value is error
    record = insight_capture.span("generate")
    assert (record.status, record.error) == ("error", "ValueError")


class OwnError(Exception):
    pass


@pytest.mark.parametrize(
    ("kind", "status", "name"),
    [
        (ZeroDivisionError, "error", "ZeroDivisionError"),
        (OwnError, "error", f"{OwnError.__module__}.OwnError"),
        (KeyboardInterrupt, "cancelled", "KeyboardInterrupt"),
        (SystemExit, "cancelled", "SystemExit"),
        (asyncio.CancelledError, "cancelled", "asyncio.exceptions.CancelledError"),
        (GeneratorExit, "ok", None),
    ],
)
def test_outcome_of_each_kind_of_exception(insight_capture, kind, status, name):
    with pytest.raises(kind), insight.trace_span("work"):
        raise kind
    record = insight_capture.span("work")
    assert (record.status, record.error) == (status, name)


def test_cancelled_task_closes_its_span_as_cancelled(insight_capture):
    async def main():
        async def hang():
            async with insight.trace_span("hang"):
                await asyncio.Event().wait()

        task = asyncio.create_task(hang())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert insight_capture.span("hang").status == "cancelled"


def test_status_can_be_set_without_an_exception(insight_capture):
    with insight.trace_span("call") as span:
        span.set_status("error", "HTTP 500")
    record = insight_capture.span("call")
    assert (record.status, record.error) == ("error", "HTTP 500")


@pytest.mark.parametrize("status", ["failed", "open", 500, None, ["ok"]])
def test_unknown_status_is_refused_and_counted(insight_capture, caplog, status):
    with insight.trace_span("call") as span:
        span.set_status(status)
        span.set_status(status)
    assert insight_capture.span("call").status == "ok"
    assert insight_capture.losses == {"spans/bad_status": 2}
    assert len(caplog.records) == 1


def test_finished_span_keeps_the_times_it_was_given(insight_capture):
    with insight.trace_span("parent"):
        insight.trace_span(name="prefill", start_time_ns=1_000, end_time_ns=3_500, attributes={"batch": 8})
    record = insight_capture.span("prefill")
    assert (record.start_ns, record.duration_ns, record.attributes) == (1_000, 2_500, {"batch": 8})
    assert record.parent_id == insight_capture.span("parent").span_id


def test_finished_span_does_not_become_current(insight_capture):
    insight.trace_span(name="over", start_time_ns=1, end_time_ns=2)
    with insight.trace_span("next"):
        pass
    assert insight_capture.span("next").parent_id is None


def test_finished_span_that_ends_where_the_clock_began_is_finished(insight_capture):
    start = insight_capture.clock.wall_ns() - 1_000_000_000
    insight.trace_span(name="over", start_time_ns=start, end_time_ns=start)
    assert insight_capture.span("over").duration_ns in (0, 1)


def test_finished_span_with_swapped_times_has_no_negative_duration(insight_capture):
    insight.trace_span(name="over", start_time_ns=5_000, end_time_ns=4_000)
    assert insight_capture.span("over").duration_ns == 0


@pytest.mark.parametrize("times", [(1, None), (None, 1), (1.5, 2.5), ("1", "2"), (-5, 5), (10**30, 10**31), (1, 2**63)])
def test_finished_span_with_bad_times_is_refused_and_spoils_nothing(insight_capture, caplog, times):
    insight.trace_span(name="bad", start_time_ns=times[0], end_time_ns=times[1])
    insight.trace_span(name="good", start_time_ns=1, end_time_ns=2)
    assert [span.name for span in insight_capture.spans] == ["good"]
    assert insight_capture.losses == {"spans/bad_time": 1}
    assert len(caplog.records) == 1


def test_span_on_a_lane_of_its_own(insight_capture):
    with insight.trace_span("a", lane="gpu 0"), insight.trace_span("b"), insight.trace_span("c", lane=7):
        pass
    assert [insight_capture.span(name).lane for name in "abc"] == ["gpu 0", "gpu 0", "7"]


class BadMapping(dict):
    def keys(self):
        raise RuntimeError("no keys")

    def __bool__(self):
        raise RuntimeError("no truth")


@pytest.mark.parametrize("attributes", [5, "text", ["a"], {1, 2}, object(), BadMapping(a=1)])
def test_attributes_that_are_not_a_mapping_are_left_out(insight_capture, caplog, attributes):
    with insight.trace_span("generate", attributes):
        pass
    assert insight_capture.span("generate").attributes == {}
    assert insight_capture.losses == {"attributes/not_a_mapping": 1}
    assert len(caplog.records) == 1


class NoText:
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


@pytest.mark.parametrize(
    ("name", "recorded"), [(7, "7"), (None, "None"), (NoText(), "<NoText>"), ("x" * 5000, "x" * 1024)]
)
def test_odd_names_become_bounded_text(insight_capture, name, recorded):
    with insight.trace_span(name):
        insight.trace_event(name)
    assert insight_capture.spans[0].name == recorded
    assert insight_capture.events[0].name == recorded


def test_open_span_is_reported_once_and_completed_by_id(insight_capture):
    span = insight.trace_span("hang", {"sample": 7})
    span.__enter__()
    assert insight_capture.spans == []
    insight_capture.clock.advance(1)
    for _ in range(3):
        opened = insight_capture.spans
    assert [(s.status, s.duration_ns, s.attributes) for s in opened] == [("open", None, {"sample": 7})]
    insight_capture.clock.advance(1)
    span.__exit__(None, None, None)
    own = [record for record in insight_capture.records if getattr(record, "name", "") == "hang"]
    assert [(s.status, s.duration_ns) for s in own] == [("open", None), ("ok", 2 * 10**9)]
    assert own[0].span_id == own[1].span_id
    assert own[0].start_ns == own[1].start_ns


def test_span_that_is_still_open_at_the_end_is_reported():
    with capture() as captured:
        insight.trace_span("hang").__enter__()
    assert [(span.name, span.status) for span in captured.spans] == [("hang", "open")]


def test_spans_that_never_end_are_bounded():
    with capture({"recorder": {"max_spans": 10}}) as captured:
        for number in range(25):
            insight.trace_span(f"leak {number}").__enter__()
            captured.flush()
        captured.clock.advance(1)
        assert len(captured.spans) == 10
    assert captured.losses == {"spans/too_many_open": 15}


def test_span_object_may_be_used_again(insight_capture):
    span = insight.trace_span("generate", {"worker": 1})
    for number in range(3):
        with span:
            insight_capture.clock.advance(1)
            span.set_attribute("number", number)
    with insight.trace_span("after"):
        pass
    spans = [record for record in insight_capture.spans if record.name == "generate"]
    assert [record.attributes for record in spans] == [{"worker": 1, "number": number} for number in range(3)]
    assert {(record.duration_ns, record.parent_id) for record in spans} == {(10**9, None)}
    assert len({record.span_id for record in spans}) == 3
    assert insight_capture.span("after").parent_id is None


def test_span_object_may_be_entered_inside_itself(insight_capture):
    span = insight.trace_span("call")

    async def recurse(depth):
        async with span:
            insight_capture.clock.advance(1)
            if depth:
                await recurse(depth - 1)
            else:
                span.set_status("error", "deepest")
                raise KeyError("deepest")

    async def work():
        with pytest.raises(KeyError):
            await recurse(2)
        with insight.trace_span("after"):
            pass

    asyncio.run(work())
    outer, middle, inner = sorted(
        (one for one in insight_capture.spans if one.name == "call"), key=lambda one: one.start_ns
    )
    assert (outer.parent_id, middle.parent_id, inner.parent_id) == (None, outer.span_id, middle.span_id)
    assert [one.duration_ns for one in (outer, middle, inner)] == [3 * 10**9, 2 * 10**9, 10**9]
    assert [one.status for one in (outer, middle, inner)] == ["error"] * 3
    assert insight_capture.span("after").parent_id is None


def test_leaving_twice_is_harmless(insight_capture):
    span = insight.trace_span("once")
    with span:
        insight_capture.clock.advance(1)
    span.__exit__(None, None, None)
    span.finish()
    assert insight_capture.span("once").duration_ns == 10**9


def test_span_left_in_another_thread_ends(insight_capture):
    span = insight.trace_span("moved")
    span.__enter__()
    thread = threading.Thread(target=span.__exit__, args=(None, None, None))
    thread.start()
    thread.join()
    assert insight_capture.span("moved").status == "ok"


def test_ids_do_not_depend_on_the_random_seed():
    def first_ids():
        random.seed(0)
        monitor = CaptureMonitor()
        from rl_insight.recorder.recorder import Recorder

        recorder = Recorder()
        monitor.finish()
        return recorder.next_span_id(), recorder.trace_prefix

    before = random.getstate()
    assert first_ids() != first_ids()
    random.setstate(before)


def test_recording_leaves_the_random_state_alone(insight_capture):
    random.seed(1)
    expected = random.Random(1).random()
    with insight.trace_span("a"):
        insight.metric_count("b")
    insight_capture.flush()
    assert random.random() == expected


@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_corrected_clock_makes_no_negative_duration(insight_capture, seconds):
    with insight.trace_span("work"):
        insight_capture.clock.advance(1)
        insight_capture.clock.step_wall(seconds)
        insight_capture.flush()
        insight_capture.clock.advance(1)
    with insight.trace_span("later"):
        pass
    assert insight_capture.span("work").duration_ns == 2 * 10**9
    assert insight_capture.span("later").start_ns == insight_capture.clock.wall_ns()


@pytest.mark.parametrize("key", ["monitor.trace_segment", "state_name"])
def test_reserved_attributes_cannot_be_overridden(insight_capture, caplog, key):
    with insight.trace_span("work", {key: "mine", "own": 1}):
        insight.trace_event("e", **{key: "mine"})
        insight.log("info", "l", **{key: "mine"})
    assert insight_capture.span("work").attributes == {"own": 1}
    assert insight_capture.span("work").segment == "duration"
    assert insight_capture.events[0].attributes == insight_capture.logs[0].attributes == {}
    assert insight_capture.losses == {"attributes/reserved": 3}
    assert len(caplog.records) == 1


class _Thing:
    """An object that can be weakly referenced; its string is recorded."""


def _span(thing):
    return insight.trace_span("work", {"thing": thing})


def _state(thing):
    return insight.trace_state("work", state_lane_id="lane", thing=thing)


def _session(thing):
    return insight.session(step=1, thing=thing)


def _phase(thing):
    return insight.phase("work", thing=thing)


def _task(thing):
    return insight.task("task", thing=thing)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("make", [_span, _state, _session, _phase, _task])
def test_what_was_recorded_is_freed_without_the_garbage_collector(insight_capture, no_collector, make):
    thing = _Thing()
    watched = weakref.ref(thing)
    with make(thing):
        del thing
    assert insight_capture.spans
    assert watched() is None


@pytest.mark.parametrize("make", [_span, _state, _session, _phase, _task])
def test_what_waits_for_the_flusher_is_hidden_from_the_garbage_collector(insight_capture, make):
    with make("thing") as block:
        assert not gc.is_tracked(block)


def test_waiting_spans_leave_the_garbage_collector_nothing_to_walk(insight_capture):
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(900):
        with insight.trace_span("generate", {"tokens": 512}):
            pass
    gc.collect()  # tuples of numbers are let go of here
    assert len(gc.get_objects()) - before < 100
