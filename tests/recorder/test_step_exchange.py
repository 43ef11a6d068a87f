"""Workers record under the step of their driver, by the time of each record, unless they set one themselves."""

from collections import deque

import rl_insight as insight
from rl_insight.recorder.step_exchange import StepExchange
from rl_insight.testing import capture


def follow(captured, marks):
    captured._flusher.steps = StepExchange(captured._recorder, fetch=lambda: marks, pause=lambda _seconds: None)


def wall(captured, seconds=0.0):
    return captured.clock.wall_ns() + round(seconds * 1e9)


def test_each_record_has_the_step_of_its_own_time():
    with capture() as captured:
        follow(captured, [(wall(captured, 1.0), 7), (wall(captured, 2.0), 8)])
        insight.trace_event("before")
        for _ in range(3):
            captured.clock.advance(0.9)
            with insight.trace_span("work"), insight.session():
                insight.metric_gauge("depth", 1.0)
                insight.log("INFO", "line")
        assert [event.step for event in captured.events] == [None]
        assert [span.step for span in captured.spans if span.name == "work"] == [None, 7, 8]
        assert [session.get("step") for session in captured.sessions] == [None, 7, 8]
        assert [log.step for log in captured.logs] == [None, 7, 8]
        assert {sample.step for sample in captured.metrics} == {None, 7, 8}


def test_a_step_of_the_worker_itself_counts():
    with capture() as captured:
        follow(captured, [(0, 7)])
        with insight.step(3), insight.trace_span("inside"):
            pass
        with insight.trace_span("outside"):
            pass
        captured.flush()
        insight.set_step(5)
        with insight.trace_span("after"):
            pass
        assert {span.name: span.step for span in captured.spans} == {"inside": 3, "outside": 7, "after": 5}


def test_nothing_is_asked_while_nothing_waits():
    asked = []
    with capture() as captured:
        captured._flusher.steps = StepExchange(captured._recorder, fetch=lambda: asked.append(1), pause=asked.append)
        captured.flush()
        assert not asked
        insight.trace_event("one")
        captured.flush()
        assert len(asked) == 2


def test_what_is_recorded_while_a_worker_waits_to_ask_has_its_turn_later():
    marks = []

    def meanwhile(_seconds):
        if not marks:
            marks.append((wall(captured), 7))
            insight.trace_event("late")

    with capture() as captured:
        captured._flusher.steps = StepExchange(captured._recorder, fetch=lambda: marks, pause=meanwhile)
        insight.trace_event("early")
        captured.clock.advance(1.0)
        captured._flusher.drain()
        captured._flusher.drain()
        captured.flush()
        assert [(event.name, event.step) for event in captured.events] == [("early", None), ("late", 7)]


def test_a_driver_announces_the_steps_it_enters_and_not_those_it_looks_back_at():
    told = []
    with capture() as captured:
        captured._recorder.step_marks = deque()
        captured._flusher.steps = StepExchange(captured._recorder, publish=told.append)
        insight.set_step(1)
        with insight.step(2), insight.step(1):
            insight.metric_gauge("loss", 0.5)
        captured.flush()
        insight.set_step(1)  # a run that resumes may go back
        captured.flush()
    assert [step for _, step in told] == [1, 2, 1]
    assert [time for time, _ in told] == sorted(time for time, _ in told)
