"""Requests of trainers and `targets add` to the server of rl-insight 0.3.0, or ours; both read the same YAML file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml
from fastapi.testclient import TestClient

which, config = sys.argv[1:]
PATH = "/api/v1/prometheus/targets"
BODIES = [
    {"targets": ["a:1"]},
    {"job_name": "vllm", "labels": {"role": "rollout", "replica": "?"}, "targets": ["b:2", {"target": "c:3"}]},
    {"job_name": "vllm", "labels": {"replica": 0}, "targets": [{"target": "b:2", "labels": {"replica": 7}}]},
    {"job_name": "vllm", "labels": None, "targets": ["d:4"], "project": "math", "experiment_name": "grpo"},
    {},
    {"targets": []},
    {"targets": "a:1"},
    {"targets": ["a:1"], "labels": ["x"]},
    {"targets": [{"target": "a:1", "labels": 3}]},
    {"targets": [5]},
]


def original():
    from rl_insight.server.http_api import create_app
    from rl_insight.utils.monitor_config_loader import load_server_config_file

    return create_app(load_server_config_file(Path(config))), lambda: None


def ours():
    from rl_insight.server.app import create_app
    from rl_insight.server.config import load_settings
    from rl_insight.server.services import Services

    services = Services(load_settings(config))
    services.otlp_port = services.settings.otlp_http_port  # as the listener sets it
    return create_app(services), services.close


app, close = {"original": original, "ours": ours}[which]()
client = TestClient(app, base_url="http://127.0.0.1:18080")
found = {"healthz": client.get("/healthz").json(), "services": client.get("/api/v1/services").json()}
answers = [client.post(PATH, json=body) for body in BODIES]
found["statuses"] = [answer.status_code for answer in answers]
found["kinds"] = [{key: type(value).__name__ for key, value in answer.json().items()} for answer in answers]
found["jobs"] = [[answer.json().get(key) for key in ("status", "job_name", "target_count")] for answer in answers]
path = Path(answers[0].json()["targets_file"])
found["targets_file"] = str(path)
entries = yaml.safe_load(path.read_text())
found["entries"] = sorted(entries, key=lambda entry: entry["targets"])
close()
print(json.dumps(found))
