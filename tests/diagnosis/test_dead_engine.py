"""Only inference engines can be dead engines: hubs and exporters are scraped, too."""

from __future__ import annotations

import pytest

from benchmarks.diagnosis_script import Script
from rl_insight.diagnosis.run import replay
from rl_insight.store.run_store import RunStore

END_S, DOWN_S = 120.0, 60.0


def _findings(path, job, page, **labels):
    """Diagnose a run whose only scrape target answers with the gauges in `page`, and stops doing so at `DOWN_S`."""
    script = Script(7)
    trainer, target = script.actor("trainer", 0, "n0"), script.actor(job, None, "n0")
    for step in range(12):
        script.span(trainer, "update", 10.0 * step, 9.0, step=step)
    where = {"job": job, "instance": "10.0.0.1:9092"}
    for tick in range(int(END_S / 5)):
        at = 5.0 * tick
        script.gauge(target, "up", at, float(at < DOWN_S), **where)
        if at < DOWN_S:
            for name, value in page.items():
                script.gauge(target, name, at, value, **where, **labels)
    with RunStore(path / "run.duckdb", min_free_bytes=0, create=True) as store:
        script.write(store, END_S, goodbye=True)
        with store.reader() as cursor:
            return [(one.rule, one.culprit) for one in replay(cursor).findings if one.rule.endswith("_engine")]


@pytest.mark.parametrize("labels", [{}, {"engine": "0"}], ids=["one engine", "with its number"])
def test_an_engine_that_stops_answering_is_dead_and_not_stuck(tmp_path, labels):
    page = {"vllm:num_requests_running": 3.0, "vllm:num_requests_waiting": 0.0}
    assert _findings(tmp_path, "vllm", page, **labels) == [("dead_engine", {"engine": "10.0.0.1:9092"})]


@pytest.mark.parametrize("page", [{"reward_mean": 0.5}, {}], ids=str)
def test_a_hub_that_stops_answering_is_no_dead_engine(tmp_path, page):
    assert _findings(tmp_path, "trainer_metrics", page) == []
