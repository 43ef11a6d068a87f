"""Queries for the page's charts: series of span names, ranks by step, a step compared with a typical one, marks."""

from __future__ import annotations

import importlib
import json

import pytest

from rl_insight.store import queries
from rl_insight.store.errors import QueryError

SECOND = 1_000_000_000


def state(maker, name, start, duration, **fields):
    fields.setdefault("segment", "state_interval")
    return maker.span(name, start=int(start * SECOND), duration=int(duration * SECOND), **fields)


def ask(store, query, *arguments, **conditions):
    with store.reader() as cursor:
        return query(cursor, *arguments, **conditions)


@pytest.fixture
def tools(store, make):
    """Record 5,000 tool calls over 100 steps; from step 60 on they take six times as long, and one in ten fails."""
    maker = make("r", role="rollout")
    for step in range(100):
        for call in range(50):
            slow = 6 if step >= 60 else 1
            status = "error" if step >= 60 and call % 10 == 0 else "ok"
            state(maker, "toolcall", step * 10 + call / 10, 0.1 * slow, step=step, segment="phase", status=status)
    store.commit([maker.build()])
    return store


def test_series_of_a_name_counts_every_span_of_every_step(tools):
    found = ask(tools, queries.span_series, "toolcall")
    assert (found.count, found.errors, found.width) == (5000, 200, 1)
    assert [one.x for one in found.intervals] == list(range(100))
    assert {(one.count, one.errors, one.p50_ns, one.p95_ns) for one in found.intervals[:60]} == {(50, 0, 1e8, 1e8)}
    assert {(one.count, one.errors, one.p50_ns, one.max_ns) for one in found.intervals[60:]} == {(50, 5, 6e8, 6e8)}
    coarse = ask(tools, queries.span_series, "toolcall", intervals=10)
    assert (coarse.width, [one.count for one in coarse.intervals]) == (10, [500] * 10)


def test_sample_of_a_series_is_even_over_the_whole_run(tools):
    """With only the newest spans, a change would appear where the sample begins, which is not real."""
    found = ask(tools, queries.span_series, "toolcall", points=500)
    assert 400 <= len(found.points) <= 600
    by_quarter = [0] * 4
    for point in found.points:
        by_quarter[point.step // 25] += 1
    assert all(80 <= count <= 170 for count in by_quarter), by_quarter
    assert {point.duration_ns for point in found.points if point.step < 60} == {SECOND // 10}
    few = ask(tools, queries.span_series, "toolcall", points=10_000)
    assert len(few.points) == 5000


def test_series_over_time_and_within_conditions(tools, begin_ns):
    found = ask(tools, queries.span_series, "toolcall", axis="time", intervals=10)
    assert sum(one.count for one in found.intervals) == 5000
    assert found.intervals[0].x == begin_ns
    assert found.intervals[-1].p50_ns == 6e8
    part = ask(tools, queries.span_series, "toolcall", first_step=10, last_step=12)
    assert [one.x for one in part.intervals] == [10, 11, 12]
    window = {"start_ns": begin_ns + 20 * SECOND, "end_ns": begin_ns + 30 * SECOND}
    assert ask(tools, queries.span_series, "toolcall", axis="time", **window).count == 50
    nothing = ask(tools, queries.span_series, "unknown")
    assert (nothing.count, nothing.intervals, nothing.points, nothing.p50_ns) == (0, [], [], None)


@pytest.mark.parametrize("axis", ["step", "time"])
def test_a_series_beyond_what_memory_holds_is_read_in_slices_as_at_once(tools, monkeypatch, axis):
    at_once = ask(tools, queries.span_series, "toolcall", axis=axis, points=100, intervals=20)
    for module in ("span_series", "measures"):
        monkeypatch.setattr(importlib.import_module(f"rl_insight.store.queries.{module}"), "MAX_ROWS", 100)
    assert ask(tools, queries.span_series, "toolcall", axis=axis, points=100, intervals=20) == at_once
    assert at_once.count > 1000


@pytest.mark.parametrize("change", [{"axis": "rank"}, {"intervals": 0}, {"points": 10**6}])
def test_senseless_series_is_refused(tools, change):
    with pytest.raises(QueryError):
        ask(tools, queries.span_series, "toolcall", **change)


def test_step_is_compared_with_the_median_of_its_neighbors(store, make):
    maker = make("t", role="trainer")
    start = 0.0
    for step in range(40):
        state(maker, "wait", start, 4, step=step)
        state(maker, "update", start + 4, 5, step=step)
        if step == 37:
            state(maker, "save_checkpoint", start + 9, 31, step=step)
        start += 41 if step == 37 else 10
    store.commit([maker.build(final=True)])
    found = ask(store, queries.compare_step, 37)
    assert (found.end_ns - found.start_ns, found.usual_ns) == (41 * SECOND, 10 * SECOND)
    assert found.neighbors == 32  # steps 7 to 39, without the one itself
    rows = [(row.name, row.wall_ns / SECOND, row.usual_ns / SECOND) for row in found.phases]
    assert rows == [("save_checkpoint", 31, 0), ("idle", 1, 1), ("update", 5, 5), ("wait", 4, 4)]
    with pytest.raises(QueryError, match="has not finished"):
        ask(store, queries.compare_step, 99)


def test_phase_by_rank_and_step_is_the_union_of_its_spans(store, make):
    trainer = make("t", role="trainer")
    ranks = [make(f"r{rank}", role="rollout", rank=rank) for rank in (0, 2, 10)]
    for step in range(3):
        state(trainer, "update", step * 10, 9, step=step)
    for maker in ranks:
        # Two at once, of which one reaches into the next step.
        state(maker, "generate", 1, 4, step=0, lane="a")
        state(maker, "generate", 3, 9, step=0, lane="b")
    state(ranks[1], "generate", 20, 7, step=2)
    for maker in (trainer, *ranks):
        store.commit([maker.build(final=True)])
    grid = ask(store, queries.rank_steps, 0, 2, name="generate")
    assert grid.steps == [0, 1, 2]
    rows = {row.title: row.values for row in grid.rows}
    assert rows == {
        "rollout 0": [9.0, 2.0, None],
        "rollout 2": [9.0, 2.0, 7.0],
        "rollout 10": [9.0, 2.0, None],
    }
    assert [row.title for row in grid.rows] == ["rollout 0", "rollout 2", "rollout 10"]
    assert set(grid.names) == {"generate", "update"}
    assert ask(store, queries.rank_steps, 0, 2).name == "generate"
    assert ask(store, queries.rank_steps, 0, 2, name="update", role="rollout").rows == []


def test_metric_by_device_and_step_is_the_mean_of_its_samples(store, make):
    maker = make("t", role="trainer")
    for step in range(2):
        state(maker, "update", step * 10, 9, step=step)
    for gpu in ("0", "2", "10"):
        labels = json.dumps({"host": "node-1", "gpu": gpu, "source": "nvml"})
        for at, value in ((1, 0.2), (5, 0.4), (12, int(gpu))):
            maker.sample("gpu_utilization_ratio", value, at=at * SECOND, labels=labels)
    store.commit([maker.build(final=True)])
    grid = ask(store, queries.rank_steps, 0, 1, metric="gpu_utilization_ratio")
    assert [row.title for row in grid.rows] == ["node-1 · GPU 0", "node-1 · GPU 2", "node-1 · GPU 10"]
    assert [row.values for row in grid.rows] == [
        [pytest.approx(0.3), 0.0],
        [pytest.approx(0.3), 2.0],
        [pytest.approx(0.3), 10.0],
    ]
    with pytest.raises(QueryError, match="mutually exclusive"):
        ask(store, queries.rank_steps, 0, 1, name="update", metric="gpu_utilization_ratio")


def test_open_work_is_shown_with_what_it_usually_takes(store, make, begin_ns):
    maker = make("r", role="rollout", rank=3)
    for call in range(101):
        state(maker, "toolcall", call, 0.5 + call / 100)
    state(maker, "toolcall", 200, -1 / SECOND, lane="slot_1")
    state(maker, "first_time", 200, -1 / SECOND)
    store.commit([maker.build()])
    found = {one.name: one for one in ask(store, queries.open_work, begin_ns + 300 * SECOND)}
    tool = found["toolcall"]
    assert (tool.oldest_age_s, tool.usual_s, tool.long_s) == (100, pytest.approx(1.0), pytest.approx(1.49))
    assert (found["first_time"].usual_s, found["first_time"].long_s) == (None, None)
    lanes = {lane.lane_id: lane.lane for lane in ask(store, queries.lanes)}
    assert lanes[tool.lane_id] == "slot_1"


def test_spans_are_found_by_error_session_and_attribute(store, make):
    maker = make("r", role="rollout")
    maker.span("toolcall", status="error", error="ToolTimeout: no answer", session_id="s037-001")
    maker.span("toolcall", attributes='{"tool": "search"}')
    store.commit([maker.build()])
    assert len(ask(store, queries.search_spans, queries.SpanConditions(text="tooltimeout"))) == 1
    assert len(ask(store, queries.search_spans, queries.SpanConditions(text="s037"))) == 1
    assert len(ask(store, queries.search_spans, queries.SpanConditions(error="Timeout"))) == 1
    assert len(ask(store, queries.search_spans, queries.SpanConditions(attribute="tool=search"))) == 1


def test_marks_are_events_checkpoints_restarts_and_annotations(store, make, begin_ns):
    ranks = [make(f"t{rank}", role="trainer", rank=rank) for rank in range(4)]
    for place, maker in enumerate(ranks):
        at = begin_ns + 50 * SECOND + place * 1000
        maker.builder.add_event(time_ns=at, name="weights_published", step=5, attributes='{"version": 5}')
        maker.builder.add_event(time_ns=at, name="rl_insight.stacks", attributes="{}")
        maker.builder.add_event(time_ns=at, name="token", session_id="s1")
        state(maker, "save_checkpoint", 60 + place, 31, step=5)
    ranks[0].builder.add_event(time_ns=begin_ns, name="config_changed", attributes='{"lr": 1e-05}')
    for maker in ranks:
        store.commit([maker.build(final=True)])
    assert queries.annotate(store, begin_ns + 70 * SECOND, " lowered the learning rate ") == [
        queries.Annotation(begin_ns + 70 * SECOND, "lowered the learning rate")
    ]
    found = [(mark.kind, mark.name, mark.count) for mark in ask(store, queries.marks)]
    assert found == [
        ("event", "config_changed", 1),
        ("event", "weights_published", 4),
        ("checkpoint", "save_checkpoint", 4),
        ("annotation", "lowered the learning rate", 1),
    ]
    window = {"start_ns": begin_ns + 55 * SECOND, "end_ns": begin_ns + 65 * SECOND}
    assert [mark.kind for mark in ask(store, queries.marks, **window)] == ["checkpoint"]
    assert queries.annotate(store, begin_ns + 70 * SECOND, "") == []
    with pytest.raises(QueryError, match="empty"):
        ask(store, queries.marks, start_ns=5, end_ns=5)


def test_process_that_replaces_an_ended_one_is_a_mark(store, make):
    first = make("t-1", role="trainer", rank=0)
    state(first, "update", 0, 1)
    store.commit([first.build(final=True)])
    second, other = make("t-2", role="trainer", rank=0), make("t-3", role="trainer", rank=1)
    state(second, "update", 5, 1)
    state(other, "update", 5, 1)
    store.commit([second.build(), other.build()])
    (mark,) = ask(store, queries.marks)
    assert (mark.kind, mark.name, mark.process_id) == ("process", "trainer started again", "t-2")


def test_log_lines_and_events_know_their_lane(store, make, begin_ns):
    maker = make("r", role="rollout")
    maker.span("work", lane="slot_1")
    maker.builder.add_log(time_ns=begin_ns, level=40, message="no answer", lane="slot_1")
    maker.builder.add_event(time_ns=begin_ns, name="gave_up", lane="slot_1")
    store.commit([maker.build()])
    (lane,) = ask(store, queries.lanes)
    assert [line.lane_id for line in ask(store, queries.search_logs)] == [lane.lane_id]
    assert [event.lane_id for event in ask(store, queries.search_events)] == [lane.lane_id]


def test_smoothing_weighs_each_point_less_than_the_next_and_passes_over_nan():
    line = queries.Line({}, [0, 1, 2, 3], [4.0, 8.0, float("nan"), 2.0])
    first, second, third, fourth = line.smoothed(0.5).y
    # 4; (4/2 + 8) / (1/2 + 1); NaN stays; ((4/2 + 8)/2 + 2) / ((1/2 + 1)/2 + 1)
    assert (first, second, fourth) == pytest.approx((4.0, 10 / 1.5, 7 / 1.75))
    assert third != third
    assert line.smoothed(0.0).y[:2] == [4.0, 8.0]


def test_flame_is_as_wide_as_the_durations_added_up(store, make):
    """Twelve sessions at once, each with a tool call of a tenth of it, one after the other: a tenth, not all of it."""
    maker = make("r", role="rollout")
    for number in range(10):
        parent = maker.span("session", start=0, duration=100 * SECOND, lane=f"slot_{number}")
        maker.span("toolcall", start=number * 10 * SECOND, duration=10 * SECOND, parent_id=parent)
    store.commit([maker.build()])
    (role,) = ask(store, queries.flame).roots
    (session,) = role.children
    (tool,) = session.children
    assert (session.wall_ns, tool.wall_ns) == (100 * SECOND, 100 * SECOND)
    assert tool.total_ns / session.total_ns == 0.1
    assert role.total_ns == session.total_ns == 1000 * SECOND
