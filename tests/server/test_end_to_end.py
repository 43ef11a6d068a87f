"""Real senders, a real server, the real store."""

import json
import os
import subprocess
import sys
import time
import urllib.request

import pytest

from rl_insight.schema import encode
from rl_insight.transport.http import HttpTransport

PRODUCER = """
import rl_insight as insight
insight.init("math", "grpo", run_id="r1", role="trainer", rank=0)
for step in range(20):
    with insight.step(step), insight.trace_state("train"):
        with insight.trace_span("forward", {"tokens": 7}):
            pass
    insight.metric_count("samples", 2, worker="0")
    insight.metric_histogram("latency_ms", 12.5)
insight.log("INFO", "done")
insight.finish()
"""

OTEL_APP = """
import logging, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
if sys.argv[1] == "grpc":
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
else:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
resource = Resource.create({"service.name": "agent", "run_id": "otel"})
tracing = TracerProvider(resource=resource)
tracing.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
metering = MeterProvider(resource=resource, metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())])
logs = LoggerProvider(resource=resource)
logs.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
log = logging.getLogger("agent.loop")
log.addHandler(LoggingHandler(logger_provider=logs))
tracer = tracing.get_tracer("app")
meter = metering.get_meter("app")
calls = meter.create_counter("tool.calls")
latency = meter.create_histogram("latency")
try:
    with tracer.start_as_current_span("episode", attributes={"task": "gsm8k"}):
        with tracer.start_as_current_span("tool", attributes={"turns": 3}):
            calls.add(2, {"tool": "python"})
            latency.record(12.0)
            log.error("tool failed")
            raise KeyError("x")
except KeyError:
    pass
for provider in (tracing, metering, logs):
    provider.shutdown()
"""


def run(code, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_a_training_process_finds_the_server_and_everything_it_recorded_is_stored(start_server, query, tmp_path):
    server = start_server()
    run(PRODUCER, RL_INSIGHT_DATA_DIR=str(server.data_dir), TMPDIR=str(tmp_path))
    metrics = urllib.request.urlopen(f"{server.url}/metrics").read().decode()
    labels = 'worker="0",experiment_name="grpo",project="math",run_id="r1"'
    assert f"rl_insight_monitor_samples_total{{{labels}}} 40.0" in metrics
    assert server.signal() == 0
    names = query(server.data_dir, "r1", "SELECT name, segment, count(*) FROM spans GROUP BY ALL ORDER BY 1")
    assert names == [("forward", "duration", 20), ("train", "state_interval", 20)]
    assert query(server.data_dir, "r1", "SELECT max(value) FROM samples WHERE name = 'samples'") == [(40.0,)]
    assert query(server.data_dir, "r1", "SELECT max(count) FROM histograms") == [(20,)]
    assert query(server.data_dir, "r1", "SELECT message FROM logs") == [("done",)]
    assert query(server.data_dir, "r1", "SELECT role, rank, final FROM processes") == [("trainer", 0, True)]


WAITING = """
import sys
import rl_insight as insight
insight.init("math", "grpo", run_id="r1")
assert insight.run_url() is None
insight.metric_count("samples", 2)
assert not insight.flush()
status = insight.get_status()["transport"]
assert status["url"] is None
assert status["last_error"] == "no server is running on this machine, and server.url is not set"
print("ready", flush=True)
sys.stdin.readline()
with insight.trace_span("late"):
    pass
assert insight.flush(20), insight.get_status()
print(insight.run_url(), flush=True)
"""


def test_script_that_ran_before_the_server_is_recorded_in_full(start_server, query, tmp_path, monkeypatch, wait_until):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    begun = time.monotonic()
    done = run(PRODUCER, RL_INSIGHT_DATA_DIR=str(tmp_path / "data"))
    assert time.monotonic() - begun < 15
    (line,) = [line for line in done.stderr.splitlines() if "no server" in line]
    assert line.startswith(f"RL-Insight found no server: events are kept in {tmp_path}")
    server = start_server()
    wait_until(lambda: list((tmp_path / "data").rglob("*.duckdb")) and not list(tmp_path.rglob("*.rli")))
    assert server.signal() == 0
    assert query(server.data_dir, "r1", "SELECT count(*) FROM spans") == [(40,)]
    assert query(server.data_dir, "r1", "SELECT message FROM logs") == [("done",)]


def test_running_process_finds_a_server_that_starts_later(start_server, query, tmp_path):
    environ = {**os.environ, "RL_INSIGHT_DATA_DIR": str(tmp_path / "data"), "TMPDIR": str(tmp_path / "other")}
    (tmp_path / "other").mkdir()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", WAITING], env=environ, **pipes) as process:
        assert process.stdout.readline() == "ready\n"
        server = start_server()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{server.url}/?run=r1\n"
        assert process.wait(20) == 0
    assert server.signal() == 0
    assert query(server.data_dir, "r1", "SELECT name FROM spans") == [("late",)]
    assert query(server.data_dir, "r1", "SELECT max(value) FROM samples") == [(2.0,)]


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_an_unmodified_opentelemetry_application_shows_up(start_server, query, protocol):
    server = start_server()
    record = server.record
    endpoint = f"http://{record.otlp_grpc_address}" if protocol == "grpc" else record.otlp_http_url
    run(OTEL_APP, protocol, OTEL_EXPORTER_OTLP_ENDPOINT=endpoint)
    assert server.signal() == 0

    def ask(sql):
        return query(server.data_dir, "otel", sql)

    spans = ask(
        "SELECT name, span_id, parent_id, status, error, attributes, duration_ns > 0 FROM spans ORDER BY start_ns"
    )
    assert [row[0] for row in spans] == ["episode", "tool"]
    assert spans[0][2] is None
    assert spans[1][2] == spans[0][1]
    assert spans[1][3:5] == ("error", "KeyError")
    assert json.loads(spans[1][5])["turns"] == 3
    assert all(row[6] for row in spans)
    assert ask("SELECT name, span_id FROM events WHERE span_id = '" + spans[1][1] + "'") == [("exception", spans[1][1])]
    assert ask("SELECT DISTINCT name, kind, labels, value FROM samples") == [
        ("tool_calls", "counter", '{"tool":"python"}', 2.0)
    ]
    assert ask("SELECT DISTINCT name, count, sum, min, max FROM histograms") == [("latency", 1, 12.0, 12.0, 12.0)]
    assert ask("SELECT level, logger, message, span_id FROM logs") == [(40, "agent.loop", "tool failed", spans[1][1])]
    assert ask("SELECT role FROM processes") == [("agent",)]


def test_curl_with_otlp_json_on_the_main_port(start_server, query):
    server = start_server()
    request = {
        "resourceSpans": [
            {
                "resource": {"attributes": [{"key": "run_id", "value": {"stringValue": "curl"}}]},
                "scopeSpans": [
                    {
                        "spans": [
                            {
                                "traceId": "5b8efff798038103d269b633813fc60c",
                                "spanId": "eee19b7ec3c1b174",
                                "parentSpanId": "eee19b7ec3c1b173",
                                "name": "from curl",
                                "startTimeUnixNano": "1700000000000000000",
                                "endTimeUnixNano": "1700000000500000000",
                                "kind": 2,
                                "attributes": [{"key": "my.attr", "value": {"intValue": "3"}}],
                            }
                        ]
                    }
                ],
            }
        ]
    }
    done = subprocess.run(
        ["curl", "-sS", "-H", "Content-Type: application/json", "-d", json.dumps(request), f"{server.url}/v1/traces"],
        capture_output=True,
        check=True,
    )
    assert json.loads(done.stdout) == {}
    assert server.signal() == 0
    assert query(
        server.data_dir,
        "curl",
        "SELECT name, trace_id, span_id, parent_id, start_ns, duration_ns, attributes FROM spans",
    ) == [
        (
            "from curl",
            "5b8efff798038103d269b633813fc60c",
            "eee19b7ec3c1b174",
            "eee19b7ec3c1b173",
            1700000000000000000,
            500000000,
            '{"my.attr":3,"span.kind":"server"}',
        )
    ]


def test_a_client_slows_down_under_overload_and_loses_nothing(start_server, make_batch, query, tmp_path):
    server = start_server("store.max_pending_bytes=200000")
    transports = [
        HttpTransport(server.url, process_id=f"p{number}", spool_dir=tmp_path / "spool", retry_initial_s=0.01)
        for number in range(3)
    ]
    losses = []
    for number, transport in enumerate(transports):
        transport.on_loss = lambda *loss: losses.append(loss)
        for sequence in range(1, 41):
            transport.send(encode(make_batch(sequence, process_id=f"p{number}", spans=100)))
    assert all(transport.flush(120) for transport in transports)
    slowed = sum(transport.get_status()["retries"] for transport in transports)
    for transport in transports:
        transport.close()
    assert server.signal() == 0
    assert slowed > 0
    assert losses == []
    assert query(server.data_dir, "r1", "SELECT count(*), count(DISTINCT process_id || span_id) FROM spans") == [
        (12_000, 12_000)
    ]
