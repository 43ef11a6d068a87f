"""Groups of samples, turns and staleness, against values computed by hand."""

from __future__ import annotations

import json
import time

import pytest

from rl_insight.monitor import Monitor
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunStore, queries


@pytest.fixture
def ask(tmp_path):
    """Return the result of a query over sessions given as dicts of their fields."""
    stores = []

    def run(query, sessions, **given):
        builder = BatchBuilder()
        for number, fields in enumerate(sessions):
            builder.add_session(
                session_id=f"s{number}",
                status=fields.get("status", "accepted"),
                time_ns=number + 1,
                record=json.dumps({name: value for name, value in fields.items() if name not in {"status", "task_id"}}),
                task_id=fields.get("task_id"),
            )
        store = RunStore(tmp_path / f"{len(stores)}.duckdb", min_free_bytes=0, create=True)
        stores.append(store)
        process = Process(process_id="p", run_id="r", host="node", pid=1)
        store.commit([builder.build(process, sequence=1, sent_ns=time.time_ns())])
        with store.reader() as cursor:
            return query(cursor, **given)

    yield run
    for store in stores:
        store.close()


def group(task, step, *rewards, **fields):
    return [{"task_id": task, "step": step, "reward": reward, **fields} for reward in rewards]


SAMPLES = [
    *group("a", 0, 0.0, 1.0, tokens=10),
    *group("a", 1, 1.0, 1.0, 1.0),  # dead
    *group("b", 0, 0.0, 0.5, 1.0, 0.5),
    *group("b", 1, 0.0, 0.0),  # dead
    *group("c", 1, 1.0),  # a single sample is compared with nothing
    *group("d", 1, None, 0.25, status="pending"),  # one reward alone cannot be dead
]


def test_a_group_is_a_tasks_samples_in_a_step(ask):
    found = ask(queries.session_groups, SAMPLES, order="spread")
    assert (found.total, found.dead) == (5, 2)
    first, second = found.groups[:2]
    assert (first.group_id, first.step, first.samples, first.rewarded) == ("a", 0, 2, 2)
    assert (first.mean, first.spread, first.least, first.most, first.tokens) == (0.5, 0.5, 0.0, 1.0, 20)
    assert (second.group_id, second.step, second.mean) == ("b", 0, 0.5)
    assert second.spread == pytest.approx(0.125**0.5)
    waiting = next(one for one in found.groups if one.group_id == "d")
    assert (waiting.open, waiting.rewarded, waiting.is_dead, waiting.mean) == (2, 1, False, 0.25)


def test_dead_groups_are_found_and_counted_by_step(ask):
    dead = ask(queries.session_groups, SAMPLES, dead=True)
    assert {(one.group_id, one.step) for one in dead.groups} == {("a", 1), ("b", 1)}
    assert ask(queries.session_groups, SAMPLES, dead=False).total == 3
    steps = ask(queries.group_steps, SAMPLES)
    assert [(one.step, one.groups, one.dead) for one in steps] == [(0, 2, 0), (1, 2, 2)]
    assert steps[0].mean == pytest.approx((0.0 + 1.0 + 0.0 + 0.5 + 1.0 + 0.5) / 6)
    assert steps[1].mean == pytest.approx(3 / 5)
    assert (steps[0].spread, steps[1].spread) == (pytest.approx((0.5 + 0.125**0.5) / 2), 0.0)


def test_a_task_has_a_curve_over_steps(ask):
    curve = ask(queries.group_steps, SAMPLES, task_id="a")
    assert [(one.step, one.mean, one.spread) for one in curve] == [(0, 0.5, 0.5), (1, 1.0, 0.0)]


def finished(step, *seconds, **fields):
    return [{"step": step, "submit_ts": 100.0, "finalized_ts": 100.0 + one, **fields} for one in seconds]


DURATIONS = [
    *finished(0, 1.0, 2.0, 3.0, 4.0, 5.0),
    *finished(1, 10.0, 30.0, status="failed"),
    *finished(None, 99.0),  # belongs to no step
    {"step": 1, "submit_ts": 100.0, "status": "pending"},
    {"step": 2, "submit_ts": 100.0, "status": "pending"},  # nothing of this step has finished
]


def test_durations_by_step_are_of_all_finished_sessions(ask):
    found = ask(queries.session_steps, DURATIONS)
    assert [(one.step, one.p50_s, one.p95_s, one.max_s) for one in found] == [
        (0, 3.0, pytest.approx(4.8), 5.0),
        (1, 20.0, pytest.approx(29.0), 30.0),
    ]


def test_durations_by_step_keep_to_the_conditions(ask):
    failed = ask(queries.session_steps, DURATIONS, chosen=queries.SessionConditions(status=["failed"]))
    assert [(one.step, one.max_s) for one in failed] == [(1, 30.0)]
    long = ask(queries.session_steps, DURATIONS, chosen=queries.SessionConditions(last_step=0, longer_than_s=3.0))
    assert [(one.step, one.p50_s) for one in long] == [(0, 4.0)]


def test_the_group_id_goes_before_the_task(ask):
    samples = [
        *group("t1", 0, 0.0, group_id="g"),
        *group("t2", 0, 1.0, group_id="g"),
    ]
    (only,) = ask(queries.session_groups, samples).groups
    assert (only.group_id, only.samples, only.spread) == ("g", 2, 0.5)
    found, total = ask(queries.sessions, samples, chosen=queries.SessionConditions(group_id="g"))
    assert (total, {one.task_id for one in found}) == (2, {"t1", "t2"})


def test_staleness_is_the_step_less_the_version_from_the_freshest_sample_on(ask):
    samples = [
        {"step": 5, "model_version": "4"},
        {"step": 5, "model_version": "4"},
        {"step": 6, "model_version": "4"},
        {"step": 6, "model_version": "2"},
        {"step": 6, "model_version": "policy-a"},
        {"step": None, "model_version": "6"},
    ]
    found = ask(queries.staleness, samples)
    # 5 - 4 = 1 is the freshest, so it counts as 0; the others are 1 and 3 versions behind.
    assert (found.samples, found.mean, found.most) == (4, 1.0, 3)
    assert [(one.behind, one.samples) for one in found.counts] == [(0, 2), (1, 1), (3, 1)]
    assert [(one.step, one.samples, one.mean, one.most) for one in found.steps] == [(5, 2, 0.0, 0), (6, 2, 2.0, 3)]
    nothing = ask(queries.staleness, [{"step": 1}])
    assert (nothing.samples, nothing.mean, nothing.most, nothing.steps) == (0, None, None, [])


def test_turns_are_the_counter_and_sessions_can_be_chosen_by_them(ask):
    samples = [{"counters": {"turns": 3}}, {"counters": {"turns": 1}}, {"counters": {"calls": 9}}, {}]
    found, _ = ask(queries.sessions, samples, order="session_id", descending=False)
    assert [one.turns for one in found] == [3, 1, None, None]
    assert ask(queries.sessions, samples, chosen=queries.SessionConditions(least_turns=2))[1] == 1
    assert ask(queries.sessions, samples, chosen=queries.SessionConditions(most_turns=2))[1] == 1


def test_turns_without_a_counter_are_the_generations(tmp_path):
    monitor = Monitor()
    monitor.init(config={"server": {"backend": "memory"}})
    with monitor.session(task_id="t"):
        for _ in range(3):
            with monitor.phase("generate"):
                pass
            with monitor.phase("toolcall"):
                pass
    assert monitor.flush()
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        store.commit(monitor._pipeline.transport.batches)
        with store.reader() as cursor:
            (found,), _ = queries.sessions(cursor)
    monitor.finish()
    assert found.turns == 3
