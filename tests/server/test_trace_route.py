"""The trace of a run over HTTP, as the page downloads it."""

from __future__ import annotations

import json

import pytest

from rl_insight.schema import decode
from rl_insight.server.http import made_files
from rl_insight.server.routes import exports as trace_route
from rl_insight.testing import CaptureMonitor


@pytest.fixture
def run(services):
    """A run of two steps on two lanes, with a session and a metric."""
    monitor = CaptureMonitor({"run_id": "r1", "project": "math", "experiment_name": "grpo", "role": "rollout"})
    for step in (1, 2):
        monitor.set_step(step)
        with monitor.trace_state("generate", f"lane_{step}"):
            monitor.clock.advance(2.0)
        with monitor.session(session_id=f"s{step}", task_id="t"), monitor.phase("reward"):
            monitor.clock.advance(1.0)
        monitor.metric_gauge("reward", float(step))
    sent = []
    monitor._flusher._send = sent.append
    monitor._flusher.drain()
    monitor._flusher.flush()
    for payload in sent:
        assert services.writer.submit_all([(decode(payload), len(payload))]).result(10) == [True]
    return monitor


def spans_of(client, **conditions):
    answer = client.get("/api/v1/trace", params={"run": "r1", **conditions})
    assert answer.status_code == 200, answer.text
    return [event for event in answer.json()["traceEvents"] if event["ph"] == "X"]


def test_a_trace_is_a_download_whose_tracks_have_names(client, run):
    answer = client.get("/api/v1/trace")
    assert answer.headers["content-disposition"] == 'attachment; filename="r1.trace.json"'
    events = json.loads(answer.content)["traceEvents"]
    names = {event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event["args"]}
    assert {"lane_1", "lane_2"} <= names
    assert any(name.startswith("rollout") for name in names)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in events if event["ph"] == "X"} <= named
    assert any(event["ph"] == "C" for event in events)


def test_conditions_choose_a_part(client, run):
    everything = spans_of(client)
    assert {event["args"]["step"] for event in everything} == {1, 2}
    assert {event["args"]["step"] for event in spans_of(client, step=2)} == {2}
    assert {event["args"]["session_id"] for event in spans_of(client, session_id="s1")} == {"s1"}
    assert [event["name"] for event in spans_of(client, lane="lane_1")] == ["generate"]
    second = next(span for span in client.get("/api/v1/spans").json() if span["step"] == 2 and span["name"] == "reward")
    later = spans_of(client, start_ns=second["start_ns"] + 1)
    assert 0 < len(later) < len(everything)
    assert {event["args"]["step"] for event in later} == {2}
    assert spans_of(client, end_ns=1) == []


def test_too_many_spans_are_refused_with_what_to_do(client, run, monkeypatch):
    monkeypatch.setattr(trace_route, "MAX_SPANS", 5)
    answer = client.get("/api/v1/trace")
    assert answer.status_code == 400
    assert "Choose a shorter time or a step" in answer.json()["error"]
    assert len(spans_of(client, session_id="s1")) <= 5


def test_only_two_traces_are_written_at_once(client, run):
    slots = [made_files._slots.acquire(blocking=False) for _ in range(2)]
    try:
        answer = client.get("/api/v1/trace")
    finally:
        for _ in slots:
            made_files._slots.release()
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
    assert spans_of(client)


@pytest.mark.parametrize(
    ("parameters", "status"),
    [
        pytest.param({"run": "nobody"}, 404, id="unknown run"),
        pytest.param({"start_ns": "soon"}, 422, id="a time that is no number"),
        pytest.param({"end_ns": -1}, 422, id="a time before 1970"),
        pytest.param({"step": "1.5"}, 422, id="half a step"),
        pytest.param({"lane": "x" * 2000}, 422, id="an endless lane"),
    ],
)
def test_wrong_questions_get_a_sentence(client, run, parameters, status):
    answer = client.get("/api/v1/trace", params=parameters)
    assert answer.status_code == status
    assert answer.json()["error"]


def test_nothing_is_left_behind(client, run, services):
    (services.runs.path.parent / "targets").mkdir(exist_ok=True)  # the housekeeping makes it, now or later
    before = set(services.runs.path.parent.iterdir())
    spans_of(client)
    assert set(services.runs.path.parent.iterdir()) == before
