"""Helpers that several packages share: the HTTP client, URLs, backoff, waiting, files."""

from __future__ import annotations

import doctest
import errno
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from rl_insight import backoff, http_client, proxies, urls, waiting
from rl_insight.backoff import Backoff
from rl_insight.errors import ConfigError
from rl_insight.files import replace_file, replacing
from rl_insight.http_client import Connection, HttpError, request
from rl_insight.waiting import wait_for


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


@pytest.mark.parametrize("module", [backoff, http_client, proxies, urls, waiting])
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


def test_waiting_ends_with_the_first_true_result_or_the_last_false_one():
    results = iter([0, None, 7, 8])
    assert wait_for(lambda: next(results), 60.0, 0.0) == 7
    calls = []
    assert wait_for(lambda: calls.append(1), 0.0) is None
    assert len(calls) == 1


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    replace_file(path, b"old")

    def full(_descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(path, b"new", durable=True)
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("state.json", b"old")]


def test_two_writers_of_one_file_do_not_mix_their_content(tmp_path):
    path = tmp_path / "part.parquet"
    with replacing(path) as first:
        first.write_bytes(b"first")
        with replacing(path) as second:
            second.write_bytes(b"second")
        assert path.read_bytes() == b"second"
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("part.parquet", b"first")]


def test_a_directory_appears_complete_or_not_at_all(tmp_path):
    def write():
        with replacing(tmp_path / "folder") as partial:
            partial.mkdir()
            (partial / "file").write_text("")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert list(tmp_path.iterdir()) == []
