"""How the engine confirms, closes and ranks the signals of rules."""

from __future__ import annotations

from types import SimpleNamespace

from benchmarks.diagnosis_script import BEGIN_S, Script
from rl_insight.diagnosis.engine import Engine, finding_id
from rl_insight.diagnosis.rule import Rule
from rl_insight.diagnosis.run import replay
from rl_insight.diagnosis.signals import Observation, Signal
from rl_insight.store import RunStore
from rl_insight.store.queries import top_findings


class _Told(Rule):
    """Reports the signals that a test sets."""

    name = "told"
    threshold = needs = remedy = "test"

    def __init__(self):
        super().__init__()
        self.next: list[Observation] = []

    def missing(self, model):
        return None

    def evaluate(self, model):
        observations, self.next = self.next, []
        return observations


class _Symptom(_Told):
    name = "symptom"
    rank = 90


class _Cause(_Told):
    name = "cause"
    rank = 10
    explains = frozenset({"symptom"})


def _see(engine, rule, step, *ranks, step_s=10.0, severity="warning"):
    signals = [Signal({"rank": rank}, f"rank {rank}", "because", severity) for rank in ranks]
    moment_ns = int(step * step_s * 10**9)
    rule.next = [Observation(moment_ns, step, signals)]
    engine.evaluate(SimpleNamespace(as_of_ns=moment_ns))


def test_three_of_five_steps_open_a_finding_and_its_id_stays():
    rule = _Told()
    engine = Engine([rule])
    for step, ranks in enumerate([(1,), (), (1,)]):
        _see(engine, rule, step, *ranks)
    assert not engine.run_findings
    _see(engine, rule, 3, 1)
    (finding,) = engine.open_findings()
    assert (finding.first_step, finding.last_step) == (0, 3)
    assert finding.finding_id == finding_id("told", ("rank=1",), "step 0")
    _see(engine, rule, 4, 1)
    assert [one.finding_id for one in engine.open_findings()] == [finding.finding_id]


def test_single_spikes_stay_quiet():
    rule = _Told()
    engine = Engine([rule])
    for step in range(40):
        _see(engine, rule, step, *([1] if step % 3 == 0 else []))
    assert not engine.run_findings


def test_a_short_pause_of_the_machine_is_not_a_finding_where_steps_are_quick():
    rule = _Told()
    engine = Engine([rule])
    for step in range(100):
        _see(engine, rule, step, *([1] if step % 50 < 20 else []), step_s=0.2)
    assert not engine.run_findings
    for step in range(100, 160):
        _see(engine, rule, step, 1, step_s=0.2)
    (finding,) = engine.open_findings()
    assert finding.first_step == 100


def test_information_explains_no_warning():
    cause, symptom = _Cause(), _Symptom()
    engine = Engine([cause, symptom])
    for step in range(4):
        _see(engine, cause, step, 1, severity="info")
        _see(engine, symptom, step, 1)
    assert {one.rule: one.explains for one in engine.open_findings()} == {"cause": [], "symptom": []}


def test_a_fault_that_comes_back_soon_is_the_same_finding():
    rule = _Told()
    engine = Engine([rule])
    for step in range(4):
        _see(engine, rule, step, 1)
    (opened,) = engine.open_findings()
    for step in range(4, 8):
        _see(engine, rule, step)
    assert not engine.open_findings()
    assert engine.run_findings[opened.finding_id].status == "resolved"
    for step in range(8, 12):
        _see(engine, rule, step, 1)
    assert [one.finding_id for one in engine.open_findings()] == [opened.finding_id]
    assert len(engine.run_findings) == 1
    assert engine.opened_ns == {opened.finding_id: 2 * 10 * 10**9}


def test_symptom_of_an_open_cause_is_listed_under_it():
    cause, symptom = _Cause(), _Symptom()
    engine = Engine([cause, symptom])
    for step in range(5):
        symptom.next = [Observation(step * 10**10, step, [Signal({"rank": 7}, "slow", "")])]
        _see(engine, cause, step, 1)
    top = top_findings(engine.run_findings.values())
    assert [one.rule for one in top] == ["cause"]
    assert len(top[0].explains) == 1


def test_a_rule_that_fails_does_not_silence_the_others(caplog):
    class Broken(_Told):
        name = "broken"

        def evaluate(self, model):
            raise ZeroDivisionError

    rule = _Told()
    engine = Engine([Broken(), rule])
    for step in range(3):
        _see(engine, rule, step, 1)
    assert len(engine.open_findings()) == 1
    assert sum("broken" in record.message for record in caplog.records) == 1


def test_records_that_are_years_apart_are_diagnosed_by_their_last_hour(tmp_path):
    """As after a clock jump: replaying all of the time in between would take days."""
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        script = Script(1)
        actor = script.actor("trainer", 0, "node-0")
        actor.builder.add_event(time_ns=1, name="early")
        for step in range(10):
            script.span(actor, "update", 2.0 * step, 1.9, step=step)
        script.write(store, 30.0, goodbye=True)
        with store.reader() as cursor:
            report = replay(cursor)
    assert report.as_of_ns > int(BEGIN_S * 10**9)
