"""The query routes, on a run recorded by a real producer."""

from __future__ import annotations

import json
import math
import threading
import urllib.request

import pytest

from rl_insight.questions import QUESTIONS
from rl_insight.schema import decode
from rl_insight.server.app import openapi_document
from rl_insight.testing import CaptureMonitor

SECOND = 1_000_000_000


@pytest.fixture
def run(services):
    """A run with two steps, a state, nested spans, metrics, a log line and an event."""
    monitor = CaptureMonitor(
        {"run_id": "r1", "project": "math", "experiment_name": "grpo", "role": "trainer", "rank": 0}
    )
    clock = monitor.clock
    for step in (1, 2):
        monitor.set_step(step)
        with monitor.trace_state("rollout", "lane_0"):
            clock.advance(2.0)
            with monitor.trace_span("generate", {"tokens": 12, "note": "find </script> me"}):
                clock.advance(1.0)
                monitor.log("warning", "reward is low", sample=step)
                monitor.trace_event("weights", version=step)
        with monitor.trace_state("update", "lane_0"):
            clock.advance(1.0)
        monitor.metric_gauge("reward", float(step), worker="a")
        monitor.metric_gauge("reward", math.nan if step == 2 else 5.0, worker="b")
        monitor.metric_count("tokens", 100)
        for value in range(1, 101):
            monitor.metric_histogram("latency_ms", value)
        monitor.metric_gauge("gpu_utilization_ratio", 0.5, host=monitor.process.host, gpu="0")
    with pytest.raises(ValueError), monitor.trace_span("broken"):
        raise ValueError
    monitor.trace_span("hung").begin(None)
    clock.advance(10.0)
    for payload in _payloads(monitor):
        assert services.writer.submit_all([(decode(payload), len(payload))]).result(10) == [True]
    return monitor


def _payloads(monitor):
    sent = []
    monitor._flusher._send = sent.append
    monitor._flusher.drain()
    monitor._flusher.flush()
    return sent


@pytest.fixture
def ask(client, run):
    def get(path, code=200, /, **parameters):
        answer = client.get(f"/api/v1/{path}", params=parameters)
        assert answer.status_code == code, answer.text
        return answer.json()

    return get


def test_runs_and_summary(ask):
    (listed,) = ask("runs")
    assert (listed["run_id"], listed["project"], listed["processes"]) == ("r1", "math", 1)
    summary = ask("summary")
    assert (summary["first_step"], summary["last_step"], summary["open_spans"]) == (1, 2, 1)
    assert summary == ask("summary", run="r1")


def test_an_unknown_run_is_404_with_a_sentence(ask):
    assert "there is no run 'r9'" in ask("summary", 404, run="r9")["error"]


def test_no_runs_at_all_is_404_with_advice(client):
    answer = client.get("/api/v1/summary")
    assert answer.status_code == 404
    assert "rl_insight.init()" in answer.json()["error"]


def test_lanes_and_timeline(ask):
    lanes = ask("lanes")
    assert {lane["lane"] for lane in lanes} == {"lane_0", None}
    summary = ask("summary")
    found = ask("timeline", start_ns=summary["start_ns"], end_ns=summary["end_ns"] + SECOND, pixels=1000)
    names = [found["names"][position] for position in found["name"]]
    assert names.count("rollout") == 2
    assert names.count("generate") == 2
    assert sum(found["open"]) == 1
    lane_0 = next(lane["lane_id"] for lane in lanes if lane["lane"] == "lane_0")
    of_one = ask("timeline", start_ns=summary["start_ns"], end_ns=summary["end_ns"] + SECOND, lane=lane_0)
    assert set(of_one["lane_id"]) == {lane_0}


def test_a_span_with_everything_around_it(ask):
    span = ask("spans", name="generate", order="oldest", limit=1)[0]
    detail = ask("span", span_id=span["span_id"])
    assert detail["span"]["attributes"] == {"tokens": 12, "note": "find </script> me"}
    assert [parent["name"] for parent in detail["parents"]] == ["rollout"]
    assert [line["message"] for line in detail["logs"]] == ["reward is low"]
    assert [event["name"] for event in detail["events"]] == ["weights"]
    assert "no span" in ask("span", 404, span_id="1")["error"]


@pytest.mark.parametrize(
    ("conditions", "names"),
    [
        ({"status": "error"}, ["broken"]),
        ({"status": "open"}, ["hung"]),
        ({"text": "</script>", "step": 2}, ["generate"]),
        ({"name_contains": "ROLL", "order": "oldest"}, ["rollout", "rollout"]),
        ({"longer_than_ns": 3 * SECOND, "step": 1}, ["rollout"]),
        ({"role": "nobody"}, []),
        ({"attribute": "tokens=12", "step": 2}, ["generate"]),
    ],
)
def test_span_search(ask, conditions, names):
    assert [span["name"] for span in ask("spans", **conditions)] == names


def test_open_work(ask):
    (work,) = ask("open/work")
    assert (work["name"], work["count"]) == ("hung", 1)
    assert [span["name"] for span in ask("open/spans")] == ["hung"]


def test_hotspots_by_scope(ask):
    everything = {spot["name"]: spot for spot in ask("hotspots")}
    assert everything["rollout"]["wall_ns"] == 6 * SECOND
    assert everything["broken"]["errors"] == 1
    assert everything["hung"]["open"] == 1
    latest = {spot["name"]: spot["wall_ns"] for spot in ask("hotspots", last_steps=1)}
    assert latest["rollout"] == 3 * SECOND
    assert {spot["role"] for spot in ask("hotspots", group_by="role")} == {"trainer"}


def test_steps(ask):
    assert [step["step"] for step in ask("steps")] == [1, 2]
    assert [step["step"] for step in ask("steps", last=1)] == [1]
    found = ask("steps/breakdown", first=1, last=2)
    assert (found["role"], found["roles"]) == ("trainer", ["trainer"])
    walls = {(step["step"], phase["name"]): phase["wall_ns"] for step in found["steps"] for phase in step["phases"]}
    assert walls[1, "rollout"] == 3 * SECOND
    (idle,) = ask("steps/idle", first=1, last=2)
    assert idle["role"] == "trainer"
    assert 0 <= idle["share"] <= 1
    metrics = {(metric["step"], metric["name"]) for metric in ask("steps/metrics", first=1, last=2)}
    assert (1, "reward") in metrics


def test_series_ranks_and_comparison(ask):
    series = ask("spans/series", name="rollout")
    assert [(one["x"], one["count"]) for one in series["intervals"]] == [(1, 1), (2, 1)]
    grid = ask("steps/ranks", first=1, last=2, name="rollout")
    assert (grid["steps"][0], grid["rows"][0]["values"][0]) == (1, 3.0)
    compared = ask("steps/compare", step=1)
    assert compared["phases"][0]["name"] in {"rollout", "idle"}


def test_annotations_are_among_the_marks_until_they_are_removed(ask, client):
    moment = ask("summary")["start_ns"]
    answer = client.post("/api/v1/annotations", params={"time_ns": moment, "text": "began here"})
    assert answer.json() == [{"time_ns": moment, "text": "began here"}]
    assert ("annotation", "began here") in {(mark["kind"], mark["name"]) for mark in ask("marks")}
    assert client.post("/api/v1/annotations", params={"time_ns": moment}).json() == []
    assert "annotation" not in {mark["kind"] for mark in ask("marks")}


def test_metrics_over_time_and_steps(ask):
    kinds = {metric["name"]: metric["kind"] for metric in ask("metrics")}
    assert kinds["reward"] == "gauge"
    assert kinds["latency_ms"] == "histogram"
    assert ask("metrics/labels", label="worker", metric="reward") == ["a", "b"]
    everything = {"start_ns": 0, "end_ns": 2**61, "axis": "step", "width": 1}
    lines = ask("metrics/range", metric="reward", **everything)
    by_worker = {line["labels"]["worker"]: (line["x"], line["y"]) for line in lines}
    assert by_worker == {"a": ([1, 2], [1.0, 2.0]), "b": ([1, 2], [5.0, "NaN"])}
    (line,) = ask("metrics/range", metric="reward", match="worker=a", group_by="", **everything)
    assert line["y"] == [1.0, 2.0]
    assert ask("metrics/range", metric="reward", match="worker=~z.*", **everything) == []
    (tokens,) = ask("metrics/range", metric="tokens", aggregation="increase", **everything)
    assert tokens["y"] == [100.0, 100.0]
    (per_second,) = ask("metrics/range", metric="tokens", start_ns=0, end_ns=2**61, width=2**60, aggregation="increase")
    assert sum(per_second["y"]) == 200.0
    (p50,) = ask("metrics/quantiles", metric="latency_ms", share=0.5, **everything)
    assert all(abs(value - 50) < 3 for value in p50["y"])
    heat_map = ask("metrics/heatmap", metric="latency_ms", **everything)
    assert [sum(counts) for counts in heat_map["counts"]] == [100, 100]


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("metrics/range", {"metric": "reward", "start_ns": 5, "end_ns": 5, "width": 1}),
        ("metrics/range", {"metric": "reward", "start_ns": 0, "end_ns": 10**12, "width": 1}),
        ("metrics/range", {"metric": "reward", "start_ns": 0, "end_ns": 9, "width": 1, "match": "worker"}),
        ("metrics/range", {"metric": "reward", "start_ns": 0, "end_ns": 9, "width": 1, "match": "worker=~("}),
        ("timeline", {"start_ns": 9, "end_ns": 5}),
        ("steps/breakdown", {"first": 0, "last": 10**6}),
        ("sessions", {"order": "nothing"}),
        ("steps/compare", {"step": 99}),
        ("steps/ranks", {"first": 1, "last": 2, "name": "rollout", "metric": "reward"}),
        ("marks", {"start_ns": 9, "end_ns": 5}),
    ],
)
def test_bad_questions_are_400_and_say_why(ask, path, parameters):
    assert len(ask(path, 400, **parameters)["error"]) > 10


@pytest.mark.parametrize(
    ("path", "parameters"),
    [
        ("timeline", {"start_ns": "x", "end_ns": 5}),
        ("timeline", {"start_ns": 2**70, "end_ns": 2**71}),
        ("span", {"span_id": "zz"}),
        ("spans", {"limit": 0}),
        ("spans", {"status": "nice"}),
        ("logs", {"level": "high"}),
    ],
)
def test_malformed_parameters_are_422_and_named(ask, path, parameters):
    assert next(iter(parameters)) in ask(path, 422, **parameters)["error"] or "end_ns" in parameters


def test_logs_and_events(ask):
    assert [line["message"] for line in ask("logs", level=30, text="REWARD")] == ["reward is low"] * 2
    assert ask("logs", level=40) == []
    assert [event["attributes"]["version"] for event in ask("events", text="weights", newest_first=False)] == [1, 2]


def test_gpu_use_is_joined_with_states(ask):
    found = ask("hardware/by_state")
    rollout = next(state for state in found["states"] if state["name"] == "rollout")
    assert rollout["seconds"] == 6.0
    assert rollout["utilization_ratio"] == pytest.approx(0.5)


def test_gpu_use_now_has_one_entry_per_gpu(ask):
    found = ask("hardware/now")
    (use,) = found["quantities"]
    assert (found["gpus"], use["quantity"], use["gpus"], use["mean"]) == (1, "utilization_ratio", 1, 0.5)
    (gpu,) = found["devices"]
    assert (gpu["gpu"], gpu["utilization_ratio"], gpu["is_stale"]) == ("0", 0.5, False)
    assert ask("hardware/now", devices=False) == found | {"devices": []}


def test_sql_reads_and_cannot_write(services, client, run):
    services.settings.sql.enabled = True
    answer = client.post("/api/v1/sql", json={"sql": "SELECT count(*) AS spans FROM spans"})
    assert answer.json()["columns"] == ["spans"]
    for statement in ("DROP TABLE span_data", "SELECT 1; SELECT 2", "COPY spans TO '/tmp/x'", "ATTACH '/tmp/x'"):
        assert client.post("/api/v1/sql", json={"sql": statement}).status_code == 400, statement


def test_sql_is_off_unless_asked_for_and_the_error_says_how(client, run):
    answer = client.post("/api/v1/sql", json={"sql": "SELECT 1"})
    assert (answer.status_code, "rl-insight server start sql.enabled=true" in answer.json()["error"]) == (403, True)


def test_the_server_bounds_the_length_of_an_answer(make_services, client_of, make_batch):
    services = make_services("sql.enabled=true", "sql.max_answer_bytes=10000")
    assert services.writer.submit_all([(make_batch(1), 1000)]).result(30) == [True]
    question = {"sql": "SELECT repeat('x', 999) FROM range(100)", "timeout_s": 30}
    answer = client_of(services).post("/api/v1/sql", json=question)
    assert (answer.status_code, len(answer.json()["rows"]), answer.json()["truncated"]) == (200, 9, True)


def test_a_run_can_be_deleted(client, run):
    assert client.request("DELETE", "/api/v1/runs", params={"run": "r1"}).json() == {"deleted": "r1"}
    assert client.get("/api/v1/runs").json() == []


def test_every_answer_is_described():
    document = openapi_document()
    schemas = document["components"]["schemas"]
    assert {"Timeline", "Lane", "Hotspot", "RunSummary", "Line"} <= set(schemas)
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation.get("description") or operation.get("summary"), (method, path)


def _read_stream(url, until, headers=None):
    """Read server-sent events until a condition is true; returns (id, data) of the changes."""
    request = urllib.request.Request(url, headers=headers or {})
    found = []
    with urllib.request.urlopen(request, timeout=20) as stream:
        identity = None
        for raw in stream:
            line = raw.decode().rstrip("\n")
            if line.startswith("id: "):
                identity = int(line[4:])
            if line.startswith("data: ") and line != "data: {}":
                found.append((identity, json.loads(line[6:])))
                if until(found):
                    return found
    return found


def test_the_live_stream_reports_changes_and_resumes(start_server, frames, make_batch):
    server = start_server()

    def post(*batches):
        headers = {"Content-Type": "application/vnd.rl-insight.frames"}
        request = urllib.request.Request(f"{server.url}/api/v1/ingest", data=frames(*batches), headers=headers)
        urllib.request.urlopen(request, timeout=20).close()

    post(make_batch(1))
    timer = threading.Timer(0.5, lambda: post(make_batch(2, spans=7)))
    timer.start()
    url = f"{server.url}/api/v1/live"
    (first,) = _read_stream(url, until=lambda found: len(found) == 1)
    timer.join()
    assert (first[1]["run_id"], first[1]["spans"]) == ("r1", 7)
    post(make_batch(3, spans=1))
    post(make_batch(4, spans=1))
    missed = _read_stream(
        url, lambda found: sum(change["spans"] for _, change in found) >= 2, {"Last-Event-ID": str(first[0])}
    )
    assert sum(change["spans"] for _, change in missed) == 2
    again = _read_stream(f"{url}?after=999999", bool)
    assert again[0][1]["resync"] is True


def test_a_view_without_enough_memory_is_answered_503_and_the_next_one_works(run, client, monkeypatch):
    def no_memory(_cursor):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(QUESTIONS["summary"], "_query", no_memory)
        answer = client.get("/api/v1/summary")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert "not enough memory" in answer.json()["error"]
    assert client.get("/api/v1/summary").status_code == 200
