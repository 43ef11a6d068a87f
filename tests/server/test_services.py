"""The parts of a server together: retention, closing, and the examples in their documentation."""

import doctest
import importlib
import os
import time

import pytest

from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.schema import BatchBuilder, Process
from rl_insight.server.config import load_settings
from rl_insight.server.services import Services


def test_old_runs_are_deleted_and_open_ones_kept(make_services, make_batch):
    services = make_services("retention.max_age_days=1")
    for run_id in ("old", "new"):
        services.ingest.submit_batches([(make_batch(1, run_id=run_id), 100)], "native").settle()
    services.runs.close_idle(0.0)
    path = services.runs.file_of("old")
    two_days_ago = time.time() - 2 * 86_400
    os.utime(path, (two_days_ago, two_days_ago))
    assert services.apply_retention() == ["old"]
    assert [info.run_id for info in services.runs.list_runs()] == ["new"]


@pytest.mark.parametrize("way", ["deleted", "retention"])
def test_metrics_of_a_deleted_run_leave_the_page(make_services, client_of, wait_until, way):
    services = make_services("retention.max_age_days=1")
    client = client_of(services)
    batches = []
    for run_id in ("old", "new"):
        builder = BatchBuilder()
        builder.add_span(span_id=1, trace=(0, 1), name="work", start_ns=1, duration_ns=1)
        builder.add_sample(builder.add_series("reward", "gauge", "", "{}"), time_ns=1, value=1.0)
        process = Process(process_id=f"p-{run_id}", run_id=run_id, host="h", pid=1)
        batches.append((builder.build(process, sequence=1, sent_ns=1), 100))
    services.ingest.submit_batches(batches, "native").settle()
    assert services.collector.wait_idle(10.0)

    def page():
        return client.get("/metrics").text

    wait_until(lambda: 'spans_total{run_id="old"' in page() and 'reward{run_id="old"}' in page())
    services.runs.close_idle(0.0)
    if way == "deleted":
        assert client.request("DELETE", "/api/v1/runs", params={"run": "old"}).status_code == 200
    else:
        two_days_ago = time.time() - 2 * 86_400
        os.utime(services.runs.file_of("old"), (two_days_ago, two_days_ago))
        assert services.apply_retention() == ["old"]
    assert 'run_id="old"' not in page()
    assert 'spans_total{run_id="new"' in page()


def test_without_retention_nothing_is_deleted(services, make_batch):
    services.ingest.submit_batches([(make_batch(1), 100)], "native").settle()
    assert services.apply_retention() == []
    assert [info.run_id for info in services.runs.list_runs()] == ["r1"]


def test_what_is_submitted_before_closing_is_stored_and_reaches_the_sinks(tmp_path, make_batch, query):
    sink = MemorySink()
    services = Services(load_settings(options={"data_dir": str(tmp_path)}), sinks=[sink])
    services.ingest.submit_batches([(make_batch(sequence), 100) for sequence in range(1, 11)], "native")
    assert services.close()
    assert services.close()
    assert query(tmp_path, "r1", "SELECT count(*) FROM spans") == [(30,)]
    assert sorted(batch.sequence for batch in sink.batches) == list(range(1, 11))


def test_after_closing_batches_are_refused_as_not_written(make_services, make_batch):
    services = make_services()
    services.close()
    outcome = services.ingest.submit_batches([(make_batch(1), 100)], "native").settle()
    assert (outcome.accepted, outcome.failed) == (0, 1)


@pytest.mark.parametrize(
    "name",
    ["bodies", "config", "counters", "security", "targets", "otlp.logs", "otlp.resources"],
)
def test_the_examples_in_the_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(f"rl_insight.server.{name}")).failed == 0
