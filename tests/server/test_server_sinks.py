"""Sinks are switched on by settings."""

from __future__ import annotations

import json
import time

import pytest

from rl_insight.errors import ConfigError
from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.server.config import load_settings
from rl_insight.server.sinks import make_sinks


def test_no_sink_is_on_by_default():
    assert make_sinks(load_settings().sinks) == []


def test_every_sink_is_switched_on_by_its_setting(tmp_path):
    words = [
        "sinks.remote_write.url=http://127.0.0.1:9090/api/v1/write",
        "sinks.remote_write.headers.X-Scope-OrgID=team",
        "sinks.otlp.endpoint=127.0.0.1:4317",
        "sinks.otlp.protocol=grpc",
        "sinks.otlp.signals=[traces,logs]",
        f"sinks.jsonl.path={tmp_path / 'events.jsonl'}",
    ]
    settings = load_settings(words=words)
    assert settings.sinks.remote_write.headers == {"X-Scope-OrgID": "team"}
    names = [sink.name for sink in make_sinks(settings.sinks)]
    assert names == ["remote_write", "otlp_traces", "otlp_logs", "jsonl"]


def test_headers_may_stand_in_a_file_and_do_not_show(tmp_path):
    path = tmp_path / "server.yaml"
    path.write_text("sinks:\n  otlp:\n    endpoint: http://h:4318\n    headers: {Authorization: Bearer secret}\n")
    settings = load_settings(path)
    assert settings.sinks.otlp.headers == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(settings)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sinks.remote_write.url=localhost"], "sinks.remote_write cannot be used: 'localhost' is no remote-write"),
        (["sinks.otlp.endpoint=ftp://h"], "sinks.otlp cannot be used: 'ftp://h' is no OTLP endpoint"),
        (["sinks.otlp.endpoint=h:1", "sinks.otlp.protocol=thrift"], "unknown OTLP protocol 'thrift'"),
        (["sinks.otlp.endpoint=http://h", "sinks.otlp.signals=[spans]"], "unknown OTLP signal 'spans'"),
        (["sinks.otlp.endpont=http://h"], "did you mean 'sinks.otlp.endpoint'?"),
        (["sinks.remote_write.headers=5"], "sinks.remote_write.headers"),
    ],
)
def test_setting_that_cannot_be_used_is_named_with_the_reason(words, said):
    with pytest.raises(ConfigError) as error:
        load_settings(words=words)
    assert said in str(error.value)


def test_stored_batch_reaches_the_sinks(make_services, make_batch, tmp_path, wait_until):
    path = tmp_path / "events.jsonl"
    services = make_services(f"sinks.jsonl.path={path}")
    outcome = services.ingest.submit_frames(frame(encode(make_batch(spans=2)))).settle()
    assert outcome.accepted == 1
    wait_until(lambda: path.exists() and path.read_text().count("\n") == 3)
    assert [json.loads(line)["type"] for line in path.read_text().splitlines()] == ["process", "span", "span"]


def test_server_writes_to_a_real_prometheus(make_services, start_prometheus):
    prometheus = start_prometheus([], "--web.enable-remote-write-receiver")
    services = make_services(f"sinks.remote_write.url={prometheus.url}/api/v1/write")
    builder = BatchBuilder()
    builder.add_sample(builder.add_series("steps", "counter", "", "{}"), time_ns=time.time_ns(), value=7.0)
    process = Process(process_id="p1", run_id="r1", host="node", pid=1)
    batch = builder.build(process, sequence=1, sent_ns=time.time_ns())
    assert services.ingest.submit_frames(frame(encode(batch))).settle().accepted == 1
    services.ingest.close()
    assert services.collector.wait_idle(30.0)
    ((labels, value),) = prometheus.query("rl_insight_monitor_steps_total")
    assert (labels["run_id"], value) == ("r1", 7.0)
