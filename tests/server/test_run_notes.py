"""The list of runs: configuration, tags, notes, reward, and the state that diagnosis adds."""

from __future__ import annotations

import json
import time

import pytest

from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.store import queries

SECOND = 1_000_000_000


@pytest.fixture
def record(services):
    """Record a run: a configuration in two parts, three steps of rewards and sessions."""

    def make(run_id="r1", *, rewards=(0.1, 0.2, 0.3), metric="reward_mean", lr=1e-6):
        now = time.time_ns()
        builder = BatchBuilder()
        builder.add_event(time_ns=now, name=CONFIG_EVENT, attributes=json.dumps({"lr": 1.0, "algorithm": "grpo"}))
        builder.add_event(time_ns=now + 1, name=CONFIG_EVENT, attributes=json.dumps({"lr": lr}))
        builder.add_event(time_ns=now + 2, name="weights_published")
        if metric is not None:
            series = builder.add_series(metric, "gauge", "", "{}")
            for step, reward in enumerate(rewards):
                builder.add_sample(series, time_ns=now + step, value=reward, step=step)
        else:
            for step, reward in enumerate(rewards):
                for sample in range(2):
                    record = {"reward": reward + sample, "step": step, "submit_ts": now / 1e9}
                    builder.add_session(
                        session_id=f"s{step}-{sample}",
                        status="accepted",
                        time_ns=now,
                        record=json.dumps(record),
                        task_id="t",
                    )
        process = Process(process_id=f"p-{run_id}", run_id=run_id, host="node", pid=1, role="trainer")
        with services.runs.open(run_id, create=True) as store:
            store.commit([builder.build(process, sequence=1, sent_ns=now)])

    return make


def info_of(client, run_id="r1"):
    (found,) = (info for info in client.get("/api/v1/runs").json() if info["run_id"] == run_id)
    return found


def test_the_configuration_has_the_latest_value_of_each_key(client, record):
    record()
    assert client.get("/api/v1/config?run=r1").json() == {"algorithm": "grpo", "lr": 1e-6}
    names = [mark["name"] for mark in client.get("/api/v1/marks?run=r1").json()]
    assert names == ["weights_published"]


@pytest.mark.parametrize(
    ("metric", "reward"), [("reward_mean", 0.3), ("train/reward", 0.3), ("my_reward", 0.3), (None, 0.8)]
)
def test_the_reward_of_a_run_is_its_metric_or_the_mean_of_the_last_steps_sessions(client, record, metric, reward):
    record(metric=metric)
    assert info_of(client)["reward"] == pytest.approx(reward)


def test_tags_and_notes_are_kept_apart_and_listed(client, record):
    record()
    answer = client.post("/api/v1/runs/notes?run=r1", json={"tags": ["baseline", " lr ", "baseline", ""]})
    assert answer.json() == {"tags": ["baseline", "lr"], "notes": ""}
    client.post("/api/v1/runs/notes?run=r1", json={"notes": "reward collapsed at step 150\n<b>why?</b>"})
    found = info_of(client)
    assert (found["tags"], found["notes"]) == (["baseline", "lr"], "reward collapsed at step 150\n<b>why?</b>")
    client.post("/api/v1/runs/notes?run=r1", json={"tags": [], "notes": ""})
    assert (info_of(client)["tags"], info_of(client)["notes"]) == ([], "")


@pytest.mark.parametrize(
    "change", [{"tags": ["x" * 61]}, {"tags": [str(number) for number in range(51)]}, {"notes": "x" * 20_001}]
)
def test_too_much_is_refused_with_the_limit(client, record, change):
    record()
    answer = client.post("/api/v1/runs/notes?run=r1", json=change)
    assert answer.status_code == 400
    assert "at most" in answer.json()["error"]
    assert info_of(client)["tags"] == []


def test_notes_of_an_unknown_run_are_not_found(client, record):
    record()
    assert client.post("/api/v1/runs/notes?run=never", json={"tags": ["a"]}).status_code == 404


@pytest.mark.parametrize(("severity", "status", "state"), [
    ("critical", "open", "stalled"), ("info", "open", "running"), ("critical", "resolved", "running"),
])  # fmt: skip
def test_a_run_that_diagnosis_found_standing_still_is_stalled(client, services, record, severity, status, state):
    record()
    finding = queries.Finding(
        finding_id="f", rule="stalled_run", severity=severity, title="it stands", start_ns=1, end_ns=2, status=status
    )
    with services.runs.open("r1") as store:
        queries.write_findings(store, [finding])
    assert info_of(client)["state"] == state


def test_two_runs_are_compared_by_configuration(client, record):
    record("r1")
    record("r2", lr=1e-5)
    found = client.get("/api/v1/runs/compare?run=r1&other=r2").json()
    assert found["config"] == [{"key": "lr", "first": 1e-6, "second": 1e-5}]
    assert "1 configuration value differs: lr" in found["sentence"]
    assert client.get("/api/v1/runs/compare?run=r1&other=never").status_code == 404
