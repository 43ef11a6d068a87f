"""What is overdue, slow or idle: open work, running and finished steps, lanes in a window."""

from __future__ import annotations

import pytest

from rl_insight.store import queries
from rl_insight.store.errors import QueryError
from tests.store.test_page_queries import SECOND, ask, state

RUNNING = -1 / SECOND
"""The duration of an open span."""


@pytest.mark.parametrize(
    ("segment", "age_s", "severity"),
    [
        ("state_interval", 49, None),
        ("state_interval", 51, "warning"),  # five times its 99th percentile of 10 s
        ("state_interval", 61, "critical"),
        ("phase", 51, "info"),
        ("phase", 61, "warning"),
    ],
)
def test_open_work_is_as_severe_as_the_findings_about_it(store, make, begin_ns, segment, age_s, severity):
    maker = make("r", role="rollout", rank=0)
    for call in range(3):
        state(maker, "toolcall", 10 * call, 10, segment=segment)
    oldest = state(maker, "toolcall", 100, RUNNING, segment=segment)
    younger = state(maker, "toolcall", 140, RUNNING, segment=segment)
    store.commit([maker.build()])
    now_ns = begin_ns + (100 + age_s) * SECOND
    (work,) = ask(store, queries.open_work, now_ns)
    assert (work.oldest_age_s, work.long_s, work.severity) == (age_s, pytest.approx(10), severity)
    assert ask(store, queries.span_detail, f"{oldest:016x}", now_ns=now_ns).severity == severity
    assert ask(store, queries.span_detail, f"{younger:016x}", now_ns=now_ns).severity is None


def test_open_work_whose_usual_duration_is_unknown_is_never_overdue(store, make, begin_ns):
    maker = make("r", role="rollout")
    for call in range(2):
        state(maker, "toolcall", call, 1)
    state(maker, "toolcall", 10, RUNNING)
    store.commit([maker.build()])
    (work,) = ask(store, queries.open_work, begin_ns + 10_000 * SECOND)
    assert (work.usual_s, work.severity) == (pytest.approx(1), None)


def steps_of(maker, lengths):
    """Record steps of these lengths in seconds, one after the other; the last one is running."""
    start = 0.0
    for step, length in enumerate([*lengths, 0.0]):
        state(maker, "update", start, length - 0.5 if length else RUNNING, step=step)
        start += length
    return start


def test_a_slow_step_is_measured_against_its_neighbors(store, make, begin_ns):
    maker = make("t", role="trainer")
    # Steps take 10 s, later 40 s: no step is slow among its neighbors but step 20.
    start = steps_of(maker, [10.0] * 20 + [17.0] + [10.0] * 79 + [40.0] * 100)
    store.commit([maker.build()])
    now_ns = int(begin_ns + (start + 5) * SECOND)
    pace = ask(store, queries.step_pace, 1000, now_ns=now_ns)
    around = [one for one in pace.slow if one.step < 60]
    assert [(one.step, one.usual_ns, one.ratio, one.severity) for one in around] == [
        (20, 10 * SECOND, pytest.approx(1.7), "warning")
    ]
    # At the change, steps of 40 s are slow only as long as most of their neighbors took 10 s.
    assert {one.step for one in pace.slow if one.step >= 60} == {100}
    assert ask(store, queries.compare_step, 20).usual_ns == around[0].usual_ns
    assert ask(store, queries.step_pace, 60, last=30, now_ns=now_ns).slow == around
    assert (pace.last_ns, pace.usual_ns) == (40 * SECOND, 40 * SECOND)


@pytest.mark.parametrize(
    ("lengths", "change", "severity"),
    [
        ([10.0] * 14, None, None),
        ([10.0] * 10 + [12.0] * 5, 0.2, None),
        ([10.0] * 10 + [13.0] * 5, 0.3, "warning"),
        ([10.0] * 10 + [5.0] * 5, -0.5, None),
    ],
)
def test_the_trend_of_steps_is_the_latest_five_against_those_before(store, make, begin_ns, lengths, change, severity):
    maker = make("t", role="trainer")
    start = steps_of(maker, lengths)
    store.commit([maker.build()])
    pace = ask(store, queries.step_pace, now_ns=int(begin_ns + start * SECOND))
    assert pace.change == (None if change is None else pytest.approx(change))
    assert pace.severity == severity


@pytest.mark.parametrize(
    ("failed", "share", "severity"),
    [(0, 0.0, None), (2, 0.02, None), (3, 0.03, "warning"), (20, 0.2, "warning"), (21, 0.21, "critical")],
)
def test_failed_spans_of_the_latest_ten_steps_have_a_severity(store, make, begin_ns, failed, share, severity):
    maker = make("t", role="trainer")
    for number in range(120):
        # Ten spans per step. Those of the first two steps all failed: they are too old to count.
        is_failed = number < 20 or number >= 120 - failed
        maker.span(
            "call",
            number * SECOND,
            SECOND,
            segment="duration",
            step=number // 10,
            status="error" if is_failed else "ok",
        )
    store.commit([maker.build(final=True)])
    found = ask(store, queries.step_pace, now_ns=begin_ns + 120 * SECOND).errors
    assert (found.spans, found.errors, found.share, found.severity) == (100, failed, share, severity)


def test_steps_without_spans_have_no_share_of_errors(store, make, begin_ns):
    maker = make("t", role="trainer")
    maker.sample("loss", 0.5, 0, step=0)
    store.commit([maker.build(final=True)])
    found = ask(store, queries.step_pace, now_ns=begin_ns).errors
    assert (found.spans, found.errors, found.share, found.severity) == (0, 0, None, None)


@pytest.mark.parametrize(
    ("lengths", "age_s", "severity"),
    [
        ([10.0] * 5, 30, None),
        ([10.0] * 5, 31, "warning"),
        ([10.0] * 5, 121, "critical"),
        ([20.0] * 5, 61, "warning"),
        ([20.0] * 5, 201, "critical"),
        ([10.0] * 2, 700, None),
        ([10.0] * 2, 721, "critical"),
        ([], 3601, "critical"),
    ],
)
def test_a_running_step_is_as_severe_as_a_stalled_run(store, make, begin_ns, lengths, age_s, severity):
    maker = make("t", role="trainer")
    start = steps_of(maker, lengths)
    store.commit([maker.build()])
    running = ask(store, queries.step_pace, now_ns=int(begin_ns + (start + age_s) * SECOND)).running
    assert (running.step, running.age_s, running.severity) == (len(lengths), age_s, severity)
    assert running.usual_ns == (int(lengths[0] * SECOND) if lengths else None)


def test_the_idle_share_of_lanes_counts_overlaps_once_and_waits_as_idle(store, make, begin_ns):
    maker = make("r", role="rollout")
    state(maker, "generate", 0, 6, lane="busy")  # the window begins at 2: 4 s
    state(maker, "tool", 5, 3, lane="busy")  # 2 s more, until 8
    state(maker, "wait_tool", 6, 1, lane="busy")  # of which 1 s is a wait
    state(maker, "generate", 11, RUNNING, lane="open")
    for call in range(1000):
        state(maker, "short", 2 + call / 100, 0.001, lane="short")
    state(maker, "generate", 30, 1, lane="later")
    store.commit([maker.build()])
    lanes = {lane.lane_id: lane.lane for lane in ask(store, queries.lanes)}
    window = {"start_ns": begin_ns + 2 * SECOND, "end_ns": begin_ns + 12 * SECOND}
    found = ask(store, queries.lane_idle, **window, now_ns=begin_ns + 60 * SECOND)
    assert [(lanes[one.lane_id], one.busy_ns / SECOND, one.share) for one in found] == [
        ("later", 0, 1),
        ("open", 1, pytest.approx(0.9)),
        ("short", pytest.approx(1), pytest.approx(0.9)),
        ("busy", 5, pytest.approx(0.5)),
    ]
    [busy] = [lane_id for lane_id, lane in lanes.items() if lane == "busy"]
    assert [one.lane_id for one in ask(store, queries.lane_idle, **window, lane_ids=[busy])] == [busy]
    with pytest.raises(QueryError, match="is empty"):
        ask(store, queries.lane_idle, start_ns=5, end_ns=5)
