"""Headers that drip in, or never end, cost a connection and nothing else."""

import contextlib
import json
import socket
from urllib.parse import urlsplit

import httpx
import pytest

WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def server(start_server):
    return start_server("header_timeout_s=0.5")


@pytest.fixture
def connection(server):
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as opened:
        yield opened


def read_answer(connection, body_ends=b'{"status":"ok"}'):
    answer = b""
    while not answer.endswith(body_ends):
        part = connection.recv(65536)
        assert part, answer
        answer += part
    return answer


def drip_until_closed(connection, bytes_to_send):
    """Send one byte at a time until the server closes the connection; returns its response."""
    answer = b""
    connection.settimeout(0.05)
    for byte in bytes_to_send:
        with contextlib.suppress(ConnectionError):
            connection.sendall(bytes([byte]))
        try:
            part = connection.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return answer
        if not part:
            return answer
        answer += part
    raise AssertionError("the server still waits")


def error_of(answer, status):
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 %d " % status)
    return json.loads(body)["error"]


@pytest.mark.parametrize(
    "dripped",
    [b"GET /healthz HTTP/1.1\r\nX: " + b"y" * 1000, b"GET /" + b"x" * 1000, b"\r\n" * 1000],
    ids=["headers", "line", "empty-lines"],
)
@pytest.mark.parametrize("before", [b"", WHOLE], ids=["first", "after-another"])
def test_headers_that_drip_in_are_abandoned_and_others_are_served(server, connection, before, dripped):
    if before:
        connection.sendall(before)
        read_answer(connection)
    answer = drip_until_closed(connection, dripped)
    assert "did not arrive in time" in error_of(answer, 408)
    refused = httpx.get(f"{server.url}/api/v1/status").json()["refused"]
    assert {"route": "http", "reason": "slow", "count": 1} in refused
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_connection_that_says_nothing_is_closed_without_a_word(server, connection):
    assert connection.recv(1000) == b""
    assert httpx.get(f"{server.url}/api/v1/status").json()["refused"] == []


def test_headers_without_an_end_are_refused(start_server):
    server = start_server()
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=30) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\n")
        answer = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(1000):
                connection.sendall(b"X: " + b"y" * 1000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            answer = connection.recv(65536)
        # The answer may be lost with what was still on the way; the connection is closed either way.
        assert not answer or "headers are longer" in error_of(answer, 431)
    assert httpx.get(f"{server.url}/healthz").status_code == 200


def test_a_request_in_two_parts_and_many_on_one_connection_are_served(server, connection):
    for _ in range(3):
        connection.sendall(WHOLE[:20])
        connection.sendall(WHOLE[20:])
        assert read_answer(connection).startswith(b"HTTP/1.1 200 ")
    connection.sendall(WHOLE * 3)
    answer = b""
    while answer.count(b'{"status":"ok"}') < 3:
        answer += connection.recv(65536)
    assert answer.count(b"HTTP/1.1 200 ") == 3
