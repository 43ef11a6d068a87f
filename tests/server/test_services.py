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
from rl_insight.store import queries
from rl_insight.store.errors import StoreError, StoreOverloadedError
from rl_insight.transport.ingest_client import CONTENT_TYPE


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


def session_batch(process_id, run_id, sequence=1, session_id="s", **fields):
    builder = BatchBuilder()
    builder.add_session(session_id=session_id, status="pending", time_ns=time.time_ns(), record="{}")
    process = Process(process_id=process_id, run_id=run_id, host="h", pid=1, heartbeat_s=0.1)
    return builder.build(process, sequence=sequence, sent_ns=time.time_ns(), **fields)


def test_a_deleted_run_does_not_keep_sessions_of_other_runs_from_being_closed(services, query, monkeypatch, caplog):
    now_ns = time.time_ns()
    for run_id in ("deleted", "kept"):
        services.ingest.submit_batches([(session_batch("p", run_id), 100)], "native").settle()
    services.delete_run("deleted")
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 120_000_000_000)
    services.close_lost_sessions()
    services.close_lost_sessions()
    assert query(services, "kept", "SELECT status FROM sessions") == [("lost",)]
    assert "Traceback" not in caplog.text
    assert not services.runs.file_of("deleted").exists()


def test_a_run_that_cannot_be_read_does_not_keep_others_from_being_looked_after(services, query, monkeypatch):
    now_ns = time.time_ns()
    for run_id in ("a", "b", "c"):
        services.ingest.submit_batches([(session_batch("p", run_id), 100)], "native").settle()
    close = queries.close_lost_sessions

    def fail_for_b(store, *rest, **options):
        if store.path.name == "b.duckdb":
            raise StoreError("broken")
        return close(store, *rest, **options)

    monkeypatch.setattr(queries, "close_lost_sessions", fail_for_b)
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + 120_000_000_000)
    services.close_lost_sessions()
    assert [query(services, run_id, "SELECT status FROM sessions")[0][0] for run_id in "abc"] == [
        "lost",
        "pending",
        "lost",
    ]


def test_a_server_that_was_down_gives_live_processes_time_to_report(make_services, query, monkeypatch):
    services = make_services()
    services.ingest.submit_batches([(session_batch("p", "r1"), 100)], "native").settle()
    services.close()
    away_until_ns = time.time_ns() + 60_000_000_000
    monkeypatch.setattr(time, "time_ns", lambda: away_until_ns)
    again = make_services()
    again._remember_runs()
    again.close_lost_sessions()
    assert query(again, "r1", "SELECT status FROM sessions") == [("pending",)]
    monkeypatch.setattr(time, "time_ns", lambda: away_until_ns + 40_000_000_000)
    again.close_lost_sessions()
    assert query(again, "r1", "SELECT status FROM sessions") == [("lost",)]
    heartbeat = BatchBuilder().build(
        Process(process_id="p", run_id="r1", host="h", pid=1, heartbeat_s=0.1), sequence=2, sent_ns=time.time_ns()
    )
    again.ingest.submit_batches([(heartbeat, 100)], "native").settle()
    assert query(again, "r1", "SELECT status FROM sessions") == [("pending",)]


def test_sixteen_runs_stay_open_while_they_are_written(services, make_batch):
    opened = []
    open_file = services.runs._open_file
    services.runs._open_file = lambda run_id, **options: opened.append(run_id) or open_file(run_id, **options)
    for sequence in range(1, 4):
        batches = [
            (make_batch(sequence, process_id=f"p{number}", run_id=f"run{run}"), 100)
            for run in range(16)
            for number in range(4)
        ]
        assert services.ingest.submit_batches(batches, "native").settle().accepted == 64
    assert sorted(opened) == sorted(f"run{run}" for run in range(16))


def test_open_runs_beyond_the_memory_budget_are_closed_the_longest_idle_first(make_services, make_batch, query):
    services = make_services("store.max_open_bytes=1048576")
    for run in range(6):
        services.ingest.submit_batches([(make_batch(1, run_id=f"run{run}", spans=20_000), 100)], "native").settle()
    assert len(services.runs.open_runs()) == 6
    with services.runs.open("run0"):
        assert services.runs.trim() > 0
        assert services.runs.open_runs()[-1] == "run0"
    assert len(services.runs.open_runs()) < 6
    for run in range(6):
        assert query(services, f"run{run}", "SELECT count(*) FROM spans") == [(20_000,)]


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
    [
        *(
            f"server.{name}"
            for name in ("config", "counters", "http.bodies", "http.security", "ingest", "scrape.targets")
        ),
        *(f"otlp.decode.{name}" for name in ("logs", "processes")),
    ],
)
def test_the_examples_in_the_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(f"rl_insight.{name}")).failed == 0


def test_metrics_of_many_processes_are_shown_by_role(make_services, client_of, frames):
    services = make_services("max_rank_processes=2")
    client = client_of(services)

    def send(rank):
        builder = BatchBuilder()
        series = builder.add_series("tokens", "counter", "", f'{{"rank":"{rank}"}}')
        builder.add_sample(series, time_ns=1, value=10.0)
        process = Process(process_id=f"p{rank}", run_id="r1", host="h", pid=1, role="actor", rank=rank)
        batch = builder.build(process, sequence=1, sent_ns=time.time_ns())
        assert client.post("/api/v1/ingest", content=frames(batch), headers={"Content-Type": CONTENT_TYPE}).is_success

    def tokens(**given):
        lines = client.get("/metrics", params=given).text.splitlines()
        return [line for line in lines if line.startswith("rl_insight_monitor_tokens_total{")]

    send(0)
    send(1)
    assert len(tokens()) == 2
    send(2)
    assert tokens() == ['rl_insight_monitor_tokens_total{run_id="r1"} 30.0']
    assert len(tokens(ranks="all")) == 3
    assert client.get("/metrics", params={"ranks": "some"}).status_code == 422


def test_a_client_is_never_asked_to_return_before_the_server_is_ready_for_it(services, client, monkeypatch):
    def overloaded():
        raise StoreOverloadedError("too much is waiting.", retry_after_s=2.3)

    monkeypatch.setattr(services.runs, "list_runs", overloaded)
    answer = client.get("/api/v1/runs")
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
