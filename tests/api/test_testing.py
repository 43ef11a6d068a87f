from __future__ import annotations

import pytest

import rl_insight as insight
from rl_insight.testing import CaptureMonitor, FakeClock, capture

pytest_plugins = ["pytester"]


def test_default_monitor_is_captured_and_restored():
    monitor = insight.init.__self__
    before = (monitor._recorder, monitor._pipeline, monitor._join)
    with capture() as captured:
        insight.metric_count("c")
    assert (monitor._recorder, monitor._pipeline, monitor._join) == before
    insight.metric_count("c")
    assert captured.value("c") == 1.0


def test_default_monitor_is_restored_after_an_exception():
    with pytest.raises(KeyError), capture():
        raise KeyError
    assert insight.init.__self__._recorder is None


def test_innermost_capture_records():
    with capture() as outer:
        insight.metric_count("outer")
        with capture() as inner:
            insight.metric_count("inner")
        insight.metric_count("outer")
    assert outer.value("outer") == 2.0
    assert [record.metric for record in inner.metrics] == ["inner"]


def test_whole_programs_can_be_tested(insight_capture):
    def main():
        insight.init("math", "grpo", config={"server": {"url": "http://10.0.0.1:18080"}})
        insight.metric_count("steps")
        assert insight.flush()
        insight.finish()

    main()
    main()
    assert insight_capture.value("steps") == 2.0


def test_wrong_arguments_of_init_are_still_errors(insight_capture):
    with pytest.raises(ValueError, match="experiment_name"):
        insight.init("math")
    with pytest.raises(ValueError, match="server"):
        insight.init(config={"serve": {}})


def test_ids_and_times_are_the_same_each_time():
    def record():
        with capture() as captured:
            with insight.trace_span("a"), insight.trace_span("b"):
                captured.clock.advance(0.25)
            insight.metric_gauge("g", 1.0)
            return captured.records

    assert record() == record()


def test_own_clock_can_be_given():
    clock = FakeClock(start_ns=5_000_000_000)
    with capture(clock=clock) as captured:
        insight.trace_event("e")
    assert captured.events[0].time_ns == 5_000_000_000


def test_time_does_not_run_backwards():
    with pytest.raises(ValueError, match="forward"):
        FakeClock().advance(-1)


def test_configuration_is_taken_and_the_environment_is_not(monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_ENABLED", "0")
    monkeypatch.setenv("RL_INSIGHT_RUN_ID", "env")
    with capture({"recorder": {"capture_text": True}, "labels": {"a": "b"}}) as captured:
        insight.trace_event("e", prompt="hello")
    assert captured.events[0].attributes == {"prompt": "hello"}
    assert captured.process.run_id == "test-run"
    assert captured.process.labels == {"a": "b"}


def test_lookup_errors_say_what_was_recorded(insight_capture):
    insight.metric_histogram("h", 1.0, worker="0")
    with insight.trace_span("a"):
        pass
    with pytest.raises(LookupError, match="'a'"):
        insight_capture.span("b")
    with pytest.raises(LookupError, match="worker"):
        insight_capture.metric("h", worker="1")
    with pytest.raises(TypeError, match="histogram"):
        insight_capture.value("h")


def test_clear_forgets_records_but_not_totals(insight_capture):
    insight.metric_count("c", 2)
    insight.trace_event("e")
    insight_capture.clear()
    assert insight_capture.records == []
    insight.metric_count("c", 1)
    assert insight_capture.value("c") == 3.0


def test_own_monitor_beside_the_default_one(insight_capture):
    own = CaptureMonitor()
    own.metric_count("mine")
    own.finish()
    own.metric_count("mine")
    assert own.value("mine") == 1.0
    assert insight_capture.metrics == []


def test_context_of_one_test_does_not_reach_the_next():
    with capture():
        insight.trace_span("left open").__enter__()
        insight.step(5).__enter__()
    with capture() as captured:
        insight.trace_event("e")
    assert (captured.events[0].span_id, captured.events[0].step) == (None, None)


def test_fixture_is_there_for_every_project(pytester):
    pytester.makepyfile(
        """
        from rl_insight import metric_count

        def rollout():
            metric_count("rollouts", worker="0")

        def test_rollouts_are_counted(insight_capture):
            rollout()
            assert insight_capture.value("rollouts", worker="0") == 1.0

        def test_next_test_starts_empty(insight_capture):
            assert insight_capture.metrics == []

        def test_internal_error(insight_capture):
            insight_capture._recorder.spans.append("not a span")
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*InternalError*"])
