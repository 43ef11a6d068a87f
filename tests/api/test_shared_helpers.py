"""Helpers that several packages share: the HTTP client, URLs, backoff."""

from __future__ import annotations

import doctest
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rl_insight import backoff, http_client, urls
from rl_insight.backoff import Backoff
from rl_insight.errors import ConfigError
from rl_insight.http_client import Connection, HttpError, request


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f"{self.path} {self.headers.get('Authorization')}".encode() + b"x" * self.server.padding
        self.server.clients.add(self.client_address)
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments): ...


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        made.daemon_threads = True
        made.clients, made.status, made.padding = set(), 200, 0
        made.url = f"http://127.0.0.1:{made.server_port}"
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.parametrize("module", [backoff, http_client, urls])
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("base", "path", "target"),
    [
        ("", "/a", "/a"),
        ("/", "/a", "/a"),
        ("/x/", "/a", "/x/a"),
        ("/x/", "", "/x/"),
        ("", "", "/"),
        ("", "?q=1", "/?q=1"),
    ],
)
def test_path_of_a_request_is_added_to_that_of_the_url(server, base, path, target):
    connection = Connection(server.url + base, token="t\n")
    assert connection.request("GET", path).body == f"{target} Bearer t".encode()
    connection.close()


def test_connection_is_kept_unless_an_answer_was_left_unread(server):
    connection = Connection(server.url)
    for _ in range(3):
        assert connection.request("GET", "/a").is_success
    assert len(server.clients) == 1
    server.padding = 1_000_000
    assert len(connection.request("GET", "/a", max_bytes=10).body) == 10
    assert connection.request("GET", "/a").is_success
    assert len(server.clients) == 2
    connection.close()


def test_refusal_is_a_reply_and_silence_an_error(server):
    server.status = 503
    reply = request("GET", f"{server.url}/a?b=c")
    assert (reply.status, reply.is_success, reply.sentence) == (503, False, "/a?b=c None")
    server.shutdown()
    server.server_close()
    with pytest.raises(HttpError, match=r"http://127\.0\.0\.1:\d+/a does not answer: "):
        request("GET", server.url.replace("http://", "http://user:secret@") + "/a", timeout_s=0.5)


def test_what_is_not_a_url_is_refused_without_its_credentials():
    with pytest.raises(ConfigError) as caught:
        request("GET", "ftp://user:secret@host/")
    assert "secret" not in str(caught.value)


def test_back_off_doubles_to_its_limit_and_starts_over():
    pauses = Backoff(1.0, 5.0)
    assert [pauses.next_s() for _ in range(5)] == [1.0, 2.0, 4.0, 5.0, 5.0]
    pauses.reset()
    assert pauses.next_s() == 1.0
    for _ in range(10_000):
        assert pauses.next_s() <= 5.0


def test_jitter_stays_within_the_pause():
    pauses = Backoff(0.5, 4.0, jitter=True)
    drawn = [pauses.next_s() for _ in range(200)]
    assert drawn[0] == 0.5
    assert all(0.5 <= pause <= 4.0 for pause in drawn)
    assert len(set(drawn)) > 100
