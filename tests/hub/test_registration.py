"""A hub's registration: renewed, removed, and never blocking."""

import http.server
import json
import threading

import pytest

from rl_insight.hub.registration import HubTarget, TargetRegistration
from rl_insight.transport.ingest_client import TARGETS_PATH, IngestClient

TARGET = HubTarget(
    addresses=["127.0.0.1:9092"],
    job_name="trainer_metrics",
    owner="r1/hub-01",
    labels={"ray_job": "01"},
    run_id="r1",
    project="p",
    experiment_name="e",
)


class ListOfTargets:
    """Receives registrations over HTTP, and stores them unchanged."""

    def __init__(self):
        self.registrations = []
        self.status = 200
        taken = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                taken.registrations.append((self.path, self.headers["Authorization"], json.loads(body)))
                answer = json.dumps({"error": "not today"}).encode()
                self.send_response(taken.status)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def addresses(self):
        return [body["addresses"] for *_, body in self.registrations]

    def close(self):
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server():
    server = ListOfTargets()
    yield server
    server.close()


@pytest.fixture
def register():
    """Start a registration that ends with the test."""
    started = []

    def start(url, **options):
        client = IngestClient(url, token="s3cret", timeout_s=5.0, path=TARGETS_PATH)
        started.append((client, TargetRegistration(client, TARGET, **options)))
        return started[-1][1]

    yield start
    for client, registration in started:
        registration.leave(5.0)
        client.close()


def test_a_hub_registers_its_identity_and_its_lease(server, register, wait_until):
    registration = register(server.url)
    wait_until(lambda: registration.get_status()["is_registered"])
    ((path, authorization, body),) = server.registrations
    assert (path, authorization) == ("/api/v1/targets", "Bearer s3cret")
    assert body == {
        "addresses": ["127.0.0.1:9092"],
        "job_name": "trainer_metrics",
        "owner": "r1/hub-01",
        "labels": {"ray_job": "01"},
        "run_id": "r1",
        "project": "p",
        "experiment_name": "e",
        "lease_s": 60.0,
        "forwards": True,
    }


def test_it_registers_again_and_again(server, register, wait_until):
    registration = register(server.url, renew_s=0.01)
    wait_until(lambda: len(server.registrations) >= 3)
    assert registration.get_status()["renewals"] >= 2


def test_it_takes_itself_back_and_can_come_again(server, register, wait_until):
    registration = register(server.url)
    assert registration.leave(10.0)
    assert server.addresses[-1] == []
    first, last = (server.registrations[number][2] for number in (0, -1))
    assert last == {**first, "addresses": []}
    assert not registration.get_status()["is_registered"]
    registration.stay()
    wait_until(lambda: registration.get_status()["is_registered"])
    assert server.addresses[-1] == ["127.0.0.1:9092"]


def test_a_refusal_is_counted_reported_and_tried_again(server, register, wait_until):
    server.status = 500
    registration = register(server.url, renew_s=0.01)
    wait_until(lambda: registration.get_status()["failures"] >= 2)
    assert registration.get_status()["last_error"] == "the server answered 500: not today"
    server.status = 200
    wait_until(lambda: registration.get_status()["is_registered"])
    assert registration.get_status()["last_error"] is None


def test_a_server_that_is_down_costs_nobody_anything(register, wait_until):
    registration = register("http://127.0.0.1:1", renew_s=0.01)
    wait_until(lambda: registration.get_status()["failures"] >= 2)
    assert "refused" in registration.get_status()["last_error"]
    assert not registration.leave(0.0)
