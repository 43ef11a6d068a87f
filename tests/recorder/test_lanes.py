from __future__ import annotations

import asyncio
import threading

import pytest

import rl_insight as insight
from rl_insight.monitor import Monitor
from rl_insight.recorder.session_producer import nothing_to_join


def in_thread(function):
    errors = []

    def run():
        try:
            function()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def test_state_is_an_interval_on_its_lane(insight_capture):
    with insight.trace_state("rollout", state_lane_id="trainer_0", batch=4):
        insight_capture.clock.advance(2)
    state = insight_capture.span("rollout")
    assert (state.segment, state.lane, state.duration_ns) == ("state_interval", "trainer_0", 2 * 10**9)
    assert (state.status, state.attributes, state.parent_id) == ("ok", {"batch": 4}, None)


def test_default_lane_is_the_process(insight_capture):
    with insight.trace_state("rollout"):
        pass
    assert insight_capture.span("rollout").lane is None


def test_default_lane_is_the_process_below_a_state_of_another_lane(insight_capture):
    with insight.trace_state("outer", "lane_1"), insight.trace_state("inner"):
        pass
    assert insight_capture.span("inner").lane is None
    with insight.trace_state("later"):
        pass
    assert insight_capture.span("later").segment == "state_interval"


@pytest.mark.parametrize(("lane", "text"), [(3, "3"), (1.5, "1.5"), (("a", 1), "('a', 1)")])
def test_lane_ids_become_text(insight_capture, lane, text):
    with insight.trace_state("rollout", lane):
        pass
    assert insight_capture.span("rollout").lane == text


def test_overlapping_entries_of_one_name_are_one_interval(insight_capture):
    clock = insight_capture.clock
    first, second = insight.trace_state("rollout", "l"), insight.trace_state("rollout", "l")
    first.__enter__()
    clock.advance(1)
    second.__enter__()
    clock.advance(1)
    first.__exit__(None, None, None)
    clock.advance(1)
    assert insight_capture.span("rollout").duration_ns is None
    second.__exit__(None, None, None)
    assert insight_capture.span("rollout").duration_ns == 3 * 10**9


def test_one_entry_after_the_other_are_two_intervals(insight_capture):
    for _ in range(2):
        with insight.trace_state("rollout", "l"):
            pass
    assert [span.segment for span in insight_capture.spans] == ["state_interval", "state_interval"]


def test_another_state_on_a_busy_lane_is_kept_as_a_child(insight_capture):
    clock = insight_capture.clock
    with insight.trace_state("rollout", "l"):
        clock.advance(1)
        with insight.trace_state("reward", "l"):
            clock.advance(1)
        clock.advance(1)
    rollout, reward = insight_capture.span("rollout"), insight_capture.span("reward")
    assert (rollout.segment, rollout.duration_ns) == ("state_interval", 3 * 10**9)
    assert (reward.segment, reward.duration_ns) == ("state_nested", 10**9)
    assert (reward.parent_id, reward.lane) == (rollout.span_id, "l")


def test_child_on_a_busy_lane_belongs_to_the_running_state_also_from_another_thread(insight_capture):
    def nested():
        with insight.trace_state("reward", "l"):
            pass

    with insight.trace_state("rollout", "l"):
        in_thread(nested)
    reward = insight_capture.span("reward")
    assert reward.segment == "state_nested"
    assert reward.parent_id == insight_capture.span("rollout").span_id


def test_lane_is_free_after_its_state_ended(insight_capture):
    with insight.trace_state("rollout", "l"):
        pass
    with insight.trace_state("update", "l"):
        pass
    assert {span.segment for span in insight_capture.spans} == {"state_interval"}


def test_nested_state_may_outlast_its_parent(insight_capture):
    outer, inner = insight.trace_state("outer", "l"), insight.trace_state("inner", "l")
    outer.__enter__()
    inner.__enter__()
    outer.__exit__(None, None, None)
    insight_capture.clock.advance(1)
    inner.__exit__(None, None, None)
    with insight.trace_state("next", "l"):
        pass
    assert [(s.name, s.segment, s.status) for s in sorted(insight_capture.spans, key=lambda s: s.span_id)] == [
        ("outer", "state_interval", "ok"),
        ("inner", "state_nested", "ok"),
        ("next", "state_interval", "ok"),
    ]


def test_lanes_do_not_disturb_each_other(insight_capture):
    with insight.trace_state("rollout", "a"), insight.trace_state("update", "b"):
        pass
    assert {(span.lane, span.segment) for span in insight_capture.spans} == {
        ("a", "state_interval"),
        ("b", "state_interval"),
    }


def test_threads_merge_on_one_lane(insight_capture):
    entered, leave = threading.Barrier(9), threading.Event()

    def work():
        with insight.trace_state("rollout", "shared"):
            entered.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    entered.wait(30)
    insight_capture.clock.advance(1)
    leave.set()
    for thread in threads:
        thread.join()
    assert insight_capture.span("rollout").duration_ns == 10**9


def test_error_in_one_of_the_merged_entries_fails_the_interval(insight_capture):
    outer = insight.trace_state("rollout", "l")
    outer.__enter__()
    with pytest.raises(KeyError), insight.trace_state("rollout", "l"):
        raise KeyError("x")
    with insight.trace_state("rollout", "l"):
        pass
    outer.__exit__(None, None, None)
    state = insight_capture.span("rollout")
    assert (state.status, state.error) == ("error", "KeyError")


@pytest.mark.parametrize("kind", [GeneratorExit, KeyboardInterrupt])
def test_a_failed_interval_stays_failed(insight_capture, kind):
    outer, inner = insight.trace_state("rollout", "l"), insight.trace_state("rollout", "l")
    outer.__enter__()
    inner.__enter__()
    inner.__exit__(ValueError, ValueError(), None)
    outer.__exit__(kind, kind(), None)
    assert insight_capture.span("rollout").error == "ValueError"


def test_state_left_in_another_thread_ends(insight_capture):
    state = insight.trace_state("rollout", "l")
    state.__enter__()
    in_thread(lambda: state.__exit__(None, None, None))
    assert insight_capture.span("rollout").status == "ok"
    in_thread(lambda: insight.trace_state("next", "l").__enter__())
    insight_capture.clock.advance(10)
    assert insight_capture.span("next").segment == "state_interval"


def test_spans_inside_a_state_are_its_children_on_its_lane(insight_capture):
    with insight.trace_state("rollout", "l"), insight.trace_span("generate"):
        insight.trace_event("token")
    state, span, event = insight_capture.span("rollout"), insight_capture.span("generate"), insight_capture.events[0]
    assert (span.parent_id, span.lane, span.trace_id) == (state.span_id, "l", state.trace_id)
    assert (event.span_id, event.lane) == (span.span_id, "l")


def test_state_works_with_async_with(insight_capture):
    import asyncio

    async def work():
        async with insight.trace_state("rollout", "l"):
            await asyncio.sleep(0)

    asyncio.run(work())
    assert insight_capture.span("rollout").status == "ok"


def test_state_object_may_be_used_again(insight_capture):
    state = insight.trace_state("rollout", "l", worker=1)
    for _ in range(3):
        with state:
            insight_capture.clock.advance(1)
    assert [(s.duration_ns, s.attributes) for s in insight_capture.spans] == [(10**9, {"worker": 1})] * 3


def test_state_object_may_be_entered_while_it_runs(insight_capture):
    state = insight.trace_state("rollout", "l")
    with state:
        with state:
            insight_capture.clock.advance(1)
        insight_capture.clock.advance(1)
    assert [(span.duration_ns, span.status) for span in insight_capture.spans] == [(2 * 10**9, "ok")]
    with insight.trace_state("update", "l"):
        pass
    assert insight_capture.span("update").segment == "state_interval"


@pytest.mark.parametrize("key", ["monitor.trace_segment", "state_name"])
def test_reserved_attributes_of_a_state_cannot_be_overridden(insight_capture, key):
    with insight.trace_state("rollout", "l", **({} if key == "state_name" else {key: "mine"})) as span:
        span.set_attribute(key, "mine")
    state = insight_capture.span("rollout")
    assert (state.name, state.lane, state.segment, state.attributes) == ("rollout", "l", "state_interval", {})
    assert insight_capture.losses == {"attributes/reserved": 1}


def test_state_decorates_functions(insight_capture):
    @insight.trace_state("update", "trainer_0", kind="actor")
    def update(value):
        insight_capture.clock.advance(1.0)
        return value + 1

    assert update(1) == 2
    assert update(2) == 3
    states = [(span.name, span.lane, span.attributes, span.duration_ns) for span in insight_capture.spans]
    assert states == [("update", "trainer_0", {"kind": "actor"}, 1_000_000_000)] * 2


def test_state_that_decorated_before_init_records_after_it():
    monitor = Monitor()
    monitor._join = nothing_to_join

    @monitor.trace_state("update")
    async def update():
        return 7

    assert asyncio.run(update()) == 7
    monitor.init(config={"server": {"backend": "memory"}})
    transport = monitor._pipeline.transport
    assert asyncio.run(update()) == 7
    monitor.finish()
    assert sum(len(batch.spans) for batch in transport.batches) == 1


@pytest.mark.parametrize(("function", "message"), [(int, "class int"), (7, "not int"), (lambda: (yield), "generator")])
def test_state_decorates_nothing_else(insight_capture, function, message):
    with pytest.raises(TypeError, match=message):
        insight.trace_state("update")(function)
