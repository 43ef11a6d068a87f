"""Findings of a running server: stored, listed, counted, muted, and told."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rl_insight.schema import BatchBuilder, Process, encode, frame


@pytest.fixture
def receiver():
    """A real HTTP receiver that fails the first request."""
    got: list[dict[str, object]] = []
    state = {"failures": 1}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            if state["failures"]:
                state["failures"] -= 1
                self.send_response(503)
            else:
                got.append({"path": self.path, **json.loads(body)})
                self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", got
    server.shutdown()
    thread.join()
    server.server_close()


def _batch(steps=40, nan_at=38):
    builder = BatchBuilder()
    begin = time.time_ns() - 2_000_000_000 * (steps + 10)
    for step in range(steps):
        start = begin + step * 2_000_000_000
        builder.add_span(
            span_id=step + 1, trace=(1, step + 1), name="update", start_ns=start, duration_ns=1_900_000_000,
            segment="state_interval", step=step,
        )  # fmt: skip
        series = builder.add_series("loss", "gauge", "", "{}")
        value = float("nan") if step == nan_at else 0.1
        builder.add_sample(series, time_ns=start + 1_900_000_000, value=value, step=step)
    who = Process(process_id="trainer-0", run_id="r1", host="node", pid=1, role="trainer", rank=0)
    return builder.build(who, sequence=1, sent_ns=time.time_ns(), final=True)


def test_a_finding_is_stored_listed_counted_muted_and_told(make_services, client_of, receiver, wait_until):
    url, got = receiver
    services = make_services(f"alerts.webhook={url}/hook", "diagnosis.interval_s=0.1", "alerts.link=http://page")
    client = client_of(services)
    body = frame(encode(_batch()))
    assert client.post(
        "/api/v1/ingest", content=body, headers={"content-type": "application/vnd.rl-insight.frames"}
    ).is_success
    found = wait_until(lambda: client.get("/api/v1/findings").json())
    assert found[0]["rule"] == "non_finite"
    assert found[0]["culprit"]["metric"] == "loss"
    wait_until(lambda: "open_findings" in client.get("/metrics").text or None)
    wait_until(lambda: got)
    assert got[0]["path"] == "/hook"
    assert got[0]["finding"]["finding_id"] == found[0]["finding_id"]
    assert got[0]["link"].startswith("http://page/?run=r1")
    assert client.post("/api/v1/findings/mute?rule=non_finite").json() == {"rules": ["non_finite"]}
    assert client.get("/api/v1/findings").json() == []
    assert client.get("/api/v1/findings?muted=true").json()
    assert client.post("/api/v1/findings/mute?rule=non_finite&muted=false").json() == {"rules": []}
    assert client.post("/api/v1/findings/mute?rule=nothing").status_code == 400
    missing = {one["rule"]: one["missing"] for one in client.get("/api/v1/findings/coverage").json()}
    assert "register the address" in missing["stuck_engine"]
    assert "non_finite" not in missing
