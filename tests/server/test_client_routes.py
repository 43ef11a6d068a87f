"""The routes for clients of rl-insight 0.3.0."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from rl_insight.server.app import create_app
from rl_insight.stack.state import ServiceState, StackState, write_state

TARGETS = "/api/v1/prometheus/targets"


@pytest.fixture
def client(services):
    return TestClient(create_app(services), base_url="http://127.0.0.1:18080")


def test_health_is_json(client):
    assert client.get("/healthz").json() == {"status": "ok"}


def test_services_name_the_port_for_traces(client, services):
    expected = {"status": "ok", "otlp_port": 18080, "prometheus_port": None, "grafana_port": None}
    assert client.get("/api/v1/services").json() == expected
    services.otlp_port = 4318
    assert client.get("/api/v1/services").json()["otlp_port"] == 4318


def test_services_name_the_ports_of_a_running_stack(client, services):
    root = services.settings.directory / "stack"
    root.mkdir(parents=True)
    states = {"prometheus": "running", "grafana": "restarting"}
    found = [
        ServiceState(name=name, title=name, state=state, url=f"http://127.0.0.1:{port}")
        for port, (name, state) in enumerate(states.items(), 9090)
    ]
    write_state(root, StackState(mode="local", owner_pid=1, owner_created=0.0, services=found))
    answer = client.get("/api/v1/services").json()
    assert (answer["prometheus_port"], answer["grafana_port"]) == (9090, None)


def test_targets_are_registered_and_their_own_labels_win(client, services):
    body = {
        "job_name": "vllm",
        "labels": {"role": "rollout", "replica": "?"},
        "targets": ["a:1", {"target": "b:2", "labels": {"replica": 1}}],
        "project": "math",
        "experiment_name": "grpo",
    }
    answer = client.post(TARGETS, json=body)
    assert answer.status_code == 200
    found = answer.json()
    assert (found["status"], found["job_name"], found["target_count"]) == ("ok", "vllm", 2)
    assert set(found) == {
        "status", "prometheus_reloaded", "job_name", "target_count", "config_file", "targets_file"
    }  # fmt: skip
    first, second = services.targets.list()
    assert first.labels == {"role": "rollout", "replica": "?"}
    assert second.labels == {"role": "rollout", "replica": "1"}
    assert (first.project, first.experiment_name) == ("math", "grpo")


def test_the_default_job_is_that_of_trainers_and_registering_again_replaces(client, services):
    for labels in ({"a": "1"}, {"a": "2"}):
        assert client.post(TARGETS, json={"targets": ["a:1"], "labels": labels}).json()["job_name"] == "trainer_metrics"
    (target,) = services.targets.list()
    assert target.labels == {"a": "2"}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"targets": []},
        {"targets": "a:1"},
        {"targets": ["a:1"], "labels": ["x"]},
        {"targets": [{"target": "a:1", "labels": 3}]},
        {"targets": [""]},
        {"targets": [{}]},
        {"targets": [5]},
        {"targets": [None]},
    ],
    ids=str,
)
def test_bad_targets_are_400_with_a_detail(client, services, body):
    answer = client.post(TARGETS, json=body)
    assert answer.status_code == 400
    assert answer.json()["detail"]
    assert services.targets.list() == []
