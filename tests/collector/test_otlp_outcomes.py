"""Ended sessions and findings as OTLP log records."""

from __future__ import annotations

import pytest

from rl_insight.collector import SinkContext
from rl_insight.collector.series import SeriesTable
from rl_insight.collector.sinks.otlp import OtlpLogSink
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store.queries.findings import Finding, write_findings
from rl_insight.store.runs import RunDirectory

SECOND = 1_000_000_000
PROCESS = Process(process_id="p", run_id="r1", host="h", pid=1, project="proj", role="actor")


def _batch(sequence=1, sessions=()):
    builder = BatchBuilder()
    builder.add_log(time_ns=5, level=20, message="hello")
    for session_id, status in sessions:
        record = f'{{"session_id":"{session_id}","reward":0.5,"reason":"because"}}'
        builder.add_session(session_id=session_id, task_id="t", status=status, time_ns=7, record=record)
    return builder.build(PROCESS, sequence=sequence, sent_ns=1)


def _records(receiver):
    """Return the received records: resource, scope, severity, body and attributes."""
    return [
        (
            {pair.key: pair.value.string_value for pair in resource.resource.attributes},
            scope.scope.name,
            record.severity_text,
            record.body.string_value,
            {pair.key: pair.value for pair in record.attributes},
        )
        for request in receiver.requests
        for resource in request.resource_logs
        for scope in resource.scope_logs
        for record in scope.log_records
    ]


def test_sessions_that_ended_are_log_records_and_open_ones_are_not(otlp_receiver):
    sink = OtlpLogSink(otlp_receiver.url)
    sink.write(_batch(sessions=[("s1", "accepted"), ("s2", "pending"), ("s3", "failed")]))
    sink.flush()
    sink.close()
    found = [one for one in _records(otlp_receiver) if one[1] == "rl_insight.sessions"]
    assert [(severity, body) for _, _, severity, body, _ in found] == [
        ("INFO", "session s1 accepted"),
        ("ERROR", "session s3 failed"),
    ]
    told = found[0][-1]
    assert (told["event.name"].string_value, told["task_id"].string_value) == ("rl.session", "t")
    assert told["reward"].double_value == 0.5


class Clock:
    now_ns = 100 * SECOND

    def __call__(self):
        return self.now_ns


@pytest.fixture
def runs(tmp_path):
    directory = RunDirectory(tmp_path, min_free_bytes=0)
    with directory.open("r1", create=True) as store:
        store.commit([_batch()])
    yield directory
    directory.close()


def _finding(**fields):
    given = {"finding_id": "f1", "rule": "straggler", "severity": "critical", "title": "rank 3 is slow"}
    return Finding(**(given | {"start_ns": 1, "end_ns": 2} | fields))


def test_each_version_of_a_finding_is_sent_once(otlp_receiver, runs):
    clock = Clock()
    sink = OtlpLogSink(otlp_receiver.url, clock=clock)
    sink.attach(SinkContext("", clock.now_ns, SeriesTable(), [], runs))
    sink.write(_batch())
    sink.flush()

    def flush_later():
        clock.now_ns += 6 * SECOND
        sink.flush()
        return [(severity, body) for _, scope, severity, body, _ in _records(otlp_receiver) if "findings" in scope]

    with runs.open("r1") as store:
        write_findings(store, [_finding(updated_ns=101 * SECOND)])
    assert flush_later() == [("CRITICAL", "open: rank 3 is slow")]
    assert len(flush_later()) == 1
    with runs.open("r1") as store:
        write_findings(store, [_finding(updated_ns=120 * SECOND, status="resolved")])
    assert flush_later()[1:] == [("CRITICAL", "resolved: rank 3 is slow")]
    resource, *_, told = next(one for one in _records(otlp_receiver) if "findings" in one[1])
    assert (resource["rl.run.id"], told["rule"].string_value) == ("r1", "straggler")
    runs.delete("r1")
    assert len(flush_later()) == 2  # a deleted run disturbs nothing
    sink.close()
