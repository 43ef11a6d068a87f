"""Paths of finished steps are remembered, until something that they depend on changes."""

from __future__ import annotations

import doctest

import pytest

from benchmarks.diagnosis_script import SECOND, Script
from rl_insight.diagnosis.critical_path import critical_path
from rl_insight.store import memory
from rl_insight.store.queries.step_answers import step_answers
from rl_insight.store.queries.steps import step_windows
from rl_insight.store.run_store import RunStore

STEPS = 4
STEP_S = 10.0


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        yield store


@pytest.fixture
def run():
    """Return a script with a trainer that waits 6 s of each step for the slower of two rollouts."""
    script = Script(3)
    trainer = script.actor("trainer", 0, "head")
    rollouts = [script.actor("rollout", rank, f"node-{rank}") for rank in range(2)]
    for step in range(STEPS):
        start = STEP_S * step
        for rank, rollout in enumerate(rollouts):
            script.span(rollout, "generate", start, 5.0 + rank, step=step)
        script.span(trainer, "wait_for_samples", start, 6.0, step=step)
        script.span(trainer, "update", start + 6.0, 4.0, step=step)
    return script


def asked(store):
    """Return the answer, after a check that one without a memory is the same."""
    with store.reader() as cursor:
        found = critical_path(cursor)
    remembered, store._memory = store._memory, memory.Memory()
    with store.reader() as cursor:
        assert critical_path(cursor) == found
    store._memory = remembered
    return found


def segments(found, step):
    (path,) = (one for one in found.steps if one.step == step)
    return [
        (one.role, one.rank, one.name, (one.start_ns - path.start_ns) / SECOND, (one.end_ns - path.start_ns) / SECOND)
        for one in path.segments
    ]


AS_PLANNED = [("rollout", 1, "generate", 0.0, 6.0), ("trainer", 0, "update", 6.0, 10.0)]


def test_answer_equals_the_truth_and_does_not_change_when_it_is_repeated(store, run):
    run.write(store, STEPS * STEP_S, goodbye=True)
    found = asked(store)
    assert [segments(found, step) for step in range(STEPS)] == [AS_PLANNED] * STEPS
    assert found.culprit.rank == 1
    assert found.culprit.saved_seconds == pytest.approx(1.0)
    assert asked(store) == found


def test_only_steps_that_changed_are_computed_again(store, run):
    run.write(store, STEPS * STEP_S, goodbye=False)

    def computed():
        calls = []

        def compute(windows):
            calls.extend(window.step for window in windows)
            return [window.step for window in windows]

        with store.reader() as cursor:
            role, windows = step_windows(cursor)
            assert step_answers(cursor, "test", role, windows, compute, lambda _: 100) == [
                window.step for window in windows
            ]
        return calls

    assert computed() == [0, 1, 2, 3]
    assert computed() == []
    run.span(run.actors[2], "generate", 2 * STEP_S + 7.0, 1.0, step=2)
    run.write(store, STEPS * STEP_S, goodbye=False)
    assert computed() == [2]
    run.span(run.actors[2], "upload", 2 * STEP_S + 8.0, 1.0, step=2, segment="duration")  # not a state
    run.write(store, STEPS * STEP_S, goodbye=False)
    assert computed() == []


def test_state_that_arrives_late_changes_its_step(store, run):
    run.write(store, STEPS * STEP_S, goodbye=True)
    asked(store)
    run.span(run.actors[1], "generate", STEP_S + 5.0, 0.9, step=1)
    run.span(run.actors[1], "reward", STEP_S + 5.9, 0.1, step=1)
    run.write(store, STEPS * STEP_S, goodbye=True)
    found = asked(store)
    assert [segments(found, step) for step in (0, 2, 3)] == [AS_PLANNED] * 3
    assert segments(found, 1) == [
        ("rollout", 0, "generate", 0.0, 5.0),
        ("rollout", 0, "generate", 5.0, 5.9),
        ("rollout", 0, "reward", 5.9, 6.0),
        ("trainer", 0, "update", 6.0, 10.0),
    ]


def test_open_state_that_arrives_late_and_then_ends_changes_its_step(store, run):
    run.write(store, STEPS * STEP_S, goodbye=False)
    asked(store)
    # The trainer has been writing a checkpoint since step 1, which hides what it did in the steps after it.
    run.span(run.actors[0], "checkpoint", STEP_S + 6.0, None, step=1)
    opened = run._spans
    run.write(store, STEPS * STEP_S, goodbye=False)
    stuck = asked(store)
    assert segments(stuck, 0) == AS_PLANNED
    assert segments(stuck, 1)[-1] == ("trainer", 0, "update", 6.0, 10.0)
    assert segments(stuck, 2) == [("trainer", 0, "checkpoint", 0.0, 10.0)]
    run.actors[0].builder.add_span(
        span_id=opened,
        trace=(1, opened),
        name="checkpoint",
        start_ns=stuck.steps[1].start_ns + 6 * SECOND,
        duration_ns=2 * SECOND,
        segment="state_interval",
        step=1,
    )
    run.write(store, STEPS * STEP_S, goodbye=False)
    assert segments(asked(store), 2) == AS_PLANNED


def test_readers_of_different_commits_get_the_answers_of_their_own(store, run):
    run.write(store, STEPS * STEP_S, goodbye=True)
    with store.reader() as earlier:
        before = critical_path(earlier, limit=1)
        run.span(run.actors[1], "generate", 3 * STEP_S + 5.0, 1.0, step=3)
        run.write(store, STEPS * STEP_S, goodbye=True)
        with store.reader() as later:
            after = critical_path(later, limit=1)
        assert after != before
        assert critical_path(earlier, limit=1) == before
    with store.reader() as cursor:
        assert critical_path(cursor, limit=1) == after


def test_corrected_clock_changes_every_step(store, run):
    run.write(store, STEPS * STEP_S, goodbye=True)
    asked(store)
    # The clock of rollout 1 turns out to be 2 s ahead: its work ended after 4 s, that of rollout 0 after 5 s.
    rollout = run.actors[2]
    batch = rollout.builder.build(rollout.process, sequence=2, sent_ns=store_time(store) + 2 * SECOND)
    store.commit([batch], received_ns=[store_time(store)])
    found = asked(store)
    assert segments(found, 1) == [
        ("rollout", 0, "generate", 0.0, 5.0),
        ("trainer", 0, "wait_for_samples", 5.0, 6.0),
        ("trainer", 0, "update", 6.0, 10.0),
    ]


def store_time(store):
    with store.reader() as cursor:
        ((last_ns,),) = cursor.execute("SELECT max(last_seen_ns) FROM processes").fetchall()
    return last_ns


def test_resumed_run_replaces_the_steps_that_it_repeats(store, run):
    run.write(store, STEPS * STEP_S, goodbye=True)
    asked(store)
    script = Script(4)
    trainer = script.actor("trainer", 0, "head", started_s=100.0, number="b")
    for step in (2, 3):
        script.span(trainer, "update", 100.0 + STEP_S * step, 10.0, step=step)
    script.write(store, 140.0, goodbye=True)
    found = asked(store)
    assert segments(found, 1) == AS_PLANNED
    assert segments(found, 2) == [("trainer", 0, "update", 0.0, 10.0)]


def test_process_that_joins_a_role_changes_who_is_compared(store, run):
    """The lanes of a role's only process are compared; with a second process, the processes are."""
    script = Script(5)
    trainer = script.actor("trainer", 0, "head")
    for step in range(STEPS):
        for lane, seconds in (("a", 8.0), ("b", 10.0)):
            script.span(trainer, "update", STEP_S * step, seconds, step=step, lane=lane)
    script.write(store, STEPS * STEP_S, goodbye=True)
    assert asked(store).suspects[0].lane == "b"
    other = script.actor("trainer", 1, "head")
    script.span(other, "update", 1000.0, 1.0)
    script.write(store, 1001.0, goodbye=True)
    assert asked(store).suspects == []


def test_answers_about_the_future_are_not_remembered(store, run, monkeypatch):
    """Open states end now: a step that ends later by a wrong clock changes with time."""
    run.write(store, STEPS * STEP_S, goodbye=True)
    with store.reader() as cursor:
        role, windows = step_windows(cursor)
        monkeypatch.setattr("time.time_ns", lambda: windows[1].end_ns)
        calls = []
        for _ in range(2):
            step_answers(
                cursor, "test", role, windows, lambda missing: calls.append(len(missing)) or missing, lambda _: 100
            )
    assert calls == [4, 2]


def test_examples():
    assert doctest.testmod(memory).failed == 0
