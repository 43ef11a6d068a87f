"""Work that only some steps have: a checkpoint or a validation that takes too long once."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_script import Script
from rl_insight.diagnosis.run import replay
from rl_insight.store.run_store import RunStore


@pytest.fixture
def findings_of(tmp_path):
    """Return the findings of a run of 30 steps of 30 s, with one piece of work in step 18."""

    def diagnose(name, seconds):
        script, moment = Script(3), 0.0
        trainer = script.actor("trainer", 0, "box")
        for step in range(1, 31):
            for state, taken in (("rollout", 20.0), ("update", 10.0)):
                script.span(trainer, state, moment, taken, step=step)
                moment += taken
            if step == 18:
                script.span(trainer, name, moment, seconds, step=step)
                moment += seconds
        with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
            script.write(store, moment + 1.0, goodbye=True)
            with store.reader() as cursor:
                return {one.rule: one for one in replay(cursor).findings}

    return diagnose


def test_one_save_of_more_than_five_minutes_is_reported(findings_of):
    found = findings_of("save_checkpoint", 320.0)["slow_checkpoint"]
    assert (found.first_step, found.last_step, found.culprit) == (18, 18, {"phase": "save_checkpoint"})
    assert found.title == "save_checkpoint takes 91% of one step: 5 min 20 s of 5 min 50 s"
    assert found.explanation == "The limit each time is 5 min 00 s."


def test_one_validation_of_five_steps_length_is_mentioned(findings_of):
    found = findings_of("validation", 160.0)["slow_validation"]
    assert (found.first_step, found.severity) == (18, "info")
    assert found.explanation == "The limit each time is 2 min 30 s."


@pytest.mark.parametrize(("name", "seconds"), [("save_checkpoint", 290.0), ("validation", 140.0)])
def test_one_that_stays_within_its_limit_is_not(findings_of, name, seconds):
    assert not {"slow_checkpoint", "slow_validation"} & findings_of(name, seconds).keys()
