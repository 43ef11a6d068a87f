"""Live forwarding and `rl-insight export --format otlp` produce the same output, byte for byte."""

import json
import time

import pytest

from rl_insight.collector.sinks.otlp import otlp_sinks
from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.importing.destinations import StoreDestination
from rl_insight.otlp.decode.requests import OtlpSignal, read_request
from rl_insight.store import RunDirectory

KEYS = {"resourceSpans": OtlpSignal.TRACES, "resourceLogs": OtlpSignal.LOGS, "resourceMetrics": OtlpSignal.METRICS}


@pytest.fixture
def batch(fake_process):
    now_ns = time.time_ns()
    process = fake_process(role="rollout", rank=3, labels={"algorithm": "grpo", "zone": ""}, started_ns=now_ns - 10**9)
    values = {
        "text": "é\n",
        "flag": True,
        "number": 3,
        "ratio": 0.5,
        "none": None,
        "list": [1, ["x"]],
        "map": {"k": {}},
    }
    values |= {"large": 2**70, "nan": "NaN", "global_steps": 7}
    process.span("rollout", span_id=1, segment="state_interval", lane="rank0", start_ns=now_ns, step=2)
    process.span("idle", span_id=2, segment="state_nested", start_ns=now_ns + 1, parent_id=1)
    process.span("generate", span_id=3, lane="gpu0", start_ns=now_ns + 2, attributes=json.dumps(values))
    process.span("reward", span_id=4, status="error", error="ValueError", start_ns=now_ns + 3, session_id="s1")
    process.span("tool", span_id=5, status="cancelled", start_ns=now_ns + 4, attributes='{"project": "own"}')
    process.event("alone", time_ns=now_ns + 5, lane="gpu0", step=4, attributes='{"a": 1}')
    process.event("late", time_ns=now_ns + 6, span_id=99, trace=(0, 5))
    for level in (5, 10, 20, 25, 30, 40, 50, 60):
        process.log(f"level {level}", level=level, time_ns=now_ns + level, attributes=json.dumps(values))
    process.log(
        "in a span", logger="tools", time_ns=now_ns, span_id=3, trace=(1, 2), lane="gpu0", step=4, session_id="s"
    )
    process.count("steps", 3, documentation="Steps done.", role="trainer").gauge("reward", 0.5).gauge("loss", -1e300)
    process.observe("latency", 1.5, 1.5, 0.0, -2.5, rank="0")
    return process.batch()


def contents(requests):
    """Return the content of requests, one entry per span, record and point, with its resource and scope, as bytes."""
    found = set()
    for request in requests:
        ((_, resources),) = request.ListFields()
        for entry in resources:
            for scope in next(value for field, value in entry.ListFields() if field.name.startswith("scope_")):
                items = next(value for field, value in scope.ListFields() if field.name != "scope")
                found |= {(serialized(entry.resource), serialized(scope.scope), serialized(item)) for item in items}
    return found


def serialized(message):
    return message.SerializeToString(deterministic=True)


def live(receiver, batch):
    sinks = otlp_sinks(receiver.url)
    for sink in sinks:
        sink.write(batch)
        sink.flush()
        sink.close()
    return contents(receiver.requests)


def exported(tmp_path, batch):
    runs = RunDirectory(tmp_path / "data", min_free_bytes=0)
    try:
        batch.sent_ns = 0  # as imports are: when it arrives says nothing about the process
        StoreDestination(runs).send([batch])
        with runs.open(batch.process.run_id) as store:
            export_run(store, "otlp", tmp_path / "run.json")
    finally:
        runs.close()
    lines = (tmp_path / "run.json").read_bytes().splitlines()
    return contents(read_request(KEYS[next(iter(json.loads(line)))], line, is_json=True) for line in lines)


def test_a_receiver_gets_the_same_bytes_live_and_from_an_export(otlp_receiver, tmp_path, batch):
    forwarded = live(otlp_receiver, batch)
    assert len(forwarded) == 5 + 2 + 9 + 4
    assert exported(tmp_path, batch) == forwarded
