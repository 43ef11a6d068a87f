"""The process that each step waited for, and the saving if that process were faster."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_runs import SHAPES
from benchmarks.diagnosis_script import Script
from rl_insight.diagnosis.critical_path import critical_path
from rl_insight.store.errors import QueryError
from rl_insight.store.run_store import RunStore


@pytest.fixture
def paths(tmp_path):
    """Return a function that writes a run with `plan(script)` and returns its critical paths."""

    def find(plan, **asked):
        with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
            plan(Script(3), store)
            with store.reader() as cursor:
                return critical_path(cursor, **asked)

    return find


def _ranks(script, store, slow_rank=None):
    """Four ranks that generate and train together; one may be slow in training."""
    actors = [script.actor("actor", rank, f"node-{rank // 2}") for rank in range(4)]
    moment = 0.0
    for step in range(6):
        train = [4.0 + 0.1 * ((rank + step) % 4) for rank in range(4)]
        if slow_rank is not None:
            train[slow_rank] = 9.0
        for rank, actor in enumerate(actors):
            script.span(actor, "generate", moment, 3.0, step=step)
            script.span(actor, "update", moment + 3.0, train[rank], step=step)
        moment += 3.0 + max(train)
    script.write(store, moment, goodbye=True)


def test_slow_rank_is_on_the_path_and_bounds_what_is_saved(paths):
    found = paths(lambda script, store: _ranks(script, store, slow_rank=2))
    assert found.role == "actor"
    assert found.culprit is not None
    assert (found.culprit.rank, found.culprit.name, found.culprit.steps) == (2, "update", 6)
    # Its slowest peer takes 4.3 s in some steps and 4.2 s in others.
    assert found.culprit.saved_seconds == pytest.approx(4.75, abs=0.1)
    assert (
        found.culprit.text
        == "If actor 2 on node-1 were as fast as its peers, steps would take 7.27 s instead of 12.0 s"
    )
    path = found.steps[2]
    assert [(one.name, one.rank) for one in path.segments][-1] == ("update", 2)
    assert sum(one.end_ns - one.start_ns for one in path.segments) == path.end_ns - path.start_ns


def test_ranks_that_take_turns_have_no_single_culprit(paths):
    found = paths(_ranks)
    assert found.culprit is None
    assert len(found.suspects) <= 3


def _slow_in_everything(script, store):
    """Rank 2 is slow in two states, rank 1 hardly slower than the others in a third."""
    actors = [script.actor("actor", rank, f"node-{rank}") for rank in range(4)]
    moment = 0.0
    for step in range(4):
        for name, usual_s, slow_s, slow_rank in (
            ("generate", 3.0, 5.0, 2),
            ("update", 4.0, 7.0, 2),
            ("log", 1.0, 1.1, 1),
        ):
            for rank, actor in enumerate(actors):
                script.span(actor, name, moment, slow_s if rank == slow_rank else usual_s, step=step)
            moment += slow_s
    script.write(store, moment, goodbye=True)


def test_process_that_is_slow_in_several_states_is_one_suspect(paths):
    found = paths(_slow_in_everything)
    for one in (found, *found.steps):
        # Rank 1 would save 0.1 s of 13.1 s, which is less than 2%: it is not a suspect.
        assert [(suspect.rank, suspect.name) for suspect in one.suspects] == [(2, "update")]
        assert one.suspects[0].saved_seconds == pytest.approx(5.0, abs=0.01)
        assert (one.suspects[0].seconds, one.suspects[0].usual_seconds) == (pytest.approx(7.0), pytest.approx(4.0))
        assert one.culprit == one.suspects[0]
    assert found.suspects[0].steps == 4


def test_run_in_which_all_are_about_as_fast_has_no_suspect(paths):
    found = paths(_ranks)
    assert found.excess_seconds > 0
    assert [one.suspects for one in (found, *found.steps)] == [[]] * 7


def _waits(script, store):
    """A trainer that waits for the slowest of three rollouts, whose tool is slow."""
    trainer = script.actor("trainer", 0, "head")
    rollouts = [script.actor("rollout", rank, f"node-{rank}") for rank in range(3)]
    for step in range(5):
        start = 20.0 * step
        for rank, rollout in enumerate(rollouts):
            slow = 3.0 if rank == 1 else 1.0
            script.span(rollout, "generate", start, 4.0, step=step)
            script.span(rollout, "toolcall", start + 4.0, 3.0 * slow, step=step)
        script.span(trainer, "wait_for_samples", start, 14.0, step=step)
        script.span(trainer, "update", start + 14.0, 6.0, step=step)
    script.write(store, 100.0, goodbye=True)


def test_wait_leads_to_the_work_that_ended_it(paths):
    found = paths(_waits, limit=2)
    assert [path.step for path in found.steps] == [3, 4]
    assert [(one.role, one.rank, one.name) for one in found.steps[0].segments] == [
        ("rollout", 1, "generate"),
        ("rollout", 1, "toolcall"),
        ("trainer", 0, "wait_for_samples"),
        ("trainer", 0, "update"),
    ]
    assert (found.culprit.rank, found.culprit.name) == (1, "toolcall")
    assert found.culprit.saved_seconds == pytest.approx(6.0)


def test_slow_worker_of_a_pool_is_found_by_the_time_of_its_calls(paths):
    found = paths(lambda script, store: SHAPES["async"](script, store, "straggler"), limit=20)
    assert found.suspects[0].process_id == "rollout-1"
    assert found.suspects[0].seconds > 1.5 * found.suspects[0].usual_seconds


def test_only_steps_up_to_one_are_shown(paths):
    found = paths(_ranks, limit=3, last=2)
    assert [path.step for path in found.steps] == [0, 1, 2]


def test_run_without_steps_has_no_path(paths):
    found = paths(lambda script, store: SHAPES["single"](script, store, ""))
    assert (found.steps, found.suspects, found.culprit) == ([], [], None)


@pytest.mark.parametrize("limit", [0, 51])
def test_limit_out_of_range_is_refused(paths, limit):
    with pytest.raises(QueryError, match="must be from 1 to 50"):
        paths(_ranks, limit=limit)
