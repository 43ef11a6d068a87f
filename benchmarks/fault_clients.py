"""Clients and servers that misbehave: random requests, slow bodies, many streams, a server that never answers well."""

from __future__ import annotations

import gzip
import http.client
import os
import random
import socket
import threading
from collections import Counter

from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.transport.ingest_client import CONTENT_TYPE

_PATHS = (
    "/api/v1/ingest", "/api/v1/runs", "/api/v1/summary", "/api/v1/timeline", "/api/v1/spans", "/api/v1/metrics",
    "/api/v1/hotspots", "/api/v1/sessions", "/api/v1/logs", "/api/v1/findings", "/api/v1/lanes", "/api/v1/steps",
    "/v1/traces", "/v1/logs", "/v1/metrics", "/metrics", "/healthz", "/",
)  # fmt: skip
_NAMES = ("run", "from_ns", "until_ns", "limit", "step", "lane", "role", "metric", "name", "width", "offset", "q")
_VALUES = ("faults", "", "-1", "0", "1", "1e308", "NaN", "9223372036854775808", "%00", "a" * 200, "[]", "{}", "'; DROP")


def fuzz(port: int, count: int, seed: int) -> Counter[int]:
    """Send random requests over one connection after another; returns how often each status was the answer."""
    chance = random.Random(seed)
    found: Counter[int] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(count):
        method, path, body, headers = _request(chance)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            answer.read()
            found[answer.status] += 1
        except (OSError, http.client.HTTPException, ValueError):
            found[0] += 1
            connection.close()
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.close()
    return found


def _request(chance: random.Random) -> tuple[str, str, bytes | None, dict[str, str]]:
    path = chance.choice(_PATHS)
    given = "&".join(f"{chance.choice(_NAMES)}={chance.choice(_VALUES)}" for _ in range(chance.randrange(4)))
    headers = {"Content-Type": chance.choice((CONTENT_TYPE, "application/x-protobuf", "application/json", "x/y"))}
    if chance.random() < 0.1:
        headers["Origin"] = chance.choice(("http://[", "null", "http://other"))
    if path not in {"/api/v1/ingest", "/v1/traces", "/v1/logs", "/v1/metrics"}:
        return "GET", f"{path}?{given}".replace(" ", "%20"), None, headers
    body = _body(chance)
    if chance.random() < 0.2:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    return "POST", f"{path}?{given}".replace(" ", "%20"), body, headers


def _body(chance: random.Random) -> bytes:
    """Return random bytes, or a batch with some of its bytes changed."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(300))
    builder = BatchBuilder()
    builder.add_span(
        span_id=chance.getrandbits(64), trace=(1, 2), name="fuzz", start_ns=chance.getrandbits(62),
        duration_ns=chance.getrandbits(40), attributes="[" * chance.randrange(300),
    )  # fmt: skip
    process = Process(process_id=f"fuzz{chance.randrange(9)}", run_id="fuzz", host="h", pid=1, heartbeat_s=1e308)
    payload = bytearray(encode(builder.build(process, sequence=chance.randrange(1, 2**40), sent_ns=1)))
    for _ in range(chance.randrange(4)):
        payload[chance.randrange(len(payload))] = chance.randrange(256)
    return frame(bytes(payload))


_HEAD = ("POST /api/v1/ingest HTTP/1.1", "Host: 127.0.0.1", f"Content-Type: {CONTENT_TYPE}", "Content-Length: 30000000")
_UNFINISHED = ("\r\n".join(_HEAD) + "\r\n\r\n").encode() + b"x" * 999


def hold_connections(port: int, count: int) -> list[socket.socket]:
    """Open connections that begin a request and never end it; those that are refused are left out."""
    held = []
    for _ in range(count):
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            connection.sendall(
                b"POST /api/v1/ingest HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 30000000\r\n\r\n" + b"x" * 999
            )
            held.append(connection)
        except OSError:
            break
    return held


def open_streams(port: int, count: int) -> list[socket.socket]:
    """Open live streams; returns those that were answered."""
    streams = []
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        stream.sendall(b"GET /api/v1/live?run=faults HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        if b"200" in stream.recv(200):
            streams.append(stream)
    return streams


class HostileServer:
    """Listens, and answers each request with something else: nothing, a drip, a reset, an endless body, an error."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.answered = 0
        self._stop = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._misbehave, args=(connection, self.answered % 5), daemon=True).start()
            self.answered += 1

    def _misbehave(self, connection: socket.socket, way: int) -> None:
        try:
            connection.settimeout(30)
            connection.recv(65536)
            if way == 0:
                self._stop.wait(30)
            elif way == 1:
                for byte in b"HTTP/1.1 200 OK\r\n" * 100:
                    connection.sendall(bytes([byte]))
                    if self._stop.wait(0.2):
                        break
            elif way == 2:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n" + os.urandom(1000))
            elif way == 3:
                connection.sendall(b"HTTP/1.1 500 no\r\nContent-Length: 2\r\n\r\n{}")
            connection.close()
        except OSError:
            return

    def stop(self) -> None:
        """Stop to listen."""
        self._stop.set()
        self._listener.close()
