"""Misbehaving clients and servers: random requests, slow bodies, many streams, a server that always fails."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import random
import socket
import threading
from collections import Counter
from typing import Any

from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.server.app import openapi_document
from rl_insight.transport.ingest_client import CONTENT_TYPE

_VALUES = (
    "faults", "", "-1", "0", "1", "7", "2.5", "1e308", "NaN", "true", "9223372036854775807", "9223372036854775808",
    "-2**80", "%00", "%F0%9F%98%80", "a" * 200, "[]", "{}", "'; DROP", "%25", "name", "time", "step", "loss", "work",
    "a=b", "*",
)  # fmt: skip
_INGEST = ("/api/v1/ingest", "/v1/traces", "/v1/logs", "/v1/metrics")
_OTHER_TYPES = (CONTENT_TYPE, "application/x-protobuf", "application/json", "x/y")
_ENDLESS = "/api/v1/live"
_SELDOM = {"/api/v1/report": 0.05, "/api/v1/runs/file": 0.1, "/api/v1/trace": 0.1}
"""Routes with responses of megabytes, which would take most of the time."""
Route = tuple[str, str, tuple[str, ...]]
"""Method, path and parameter names."""


def routes() -> list[Route]:
    """Return all routes of the server's OpenAPI document except the endless stream."""
    found = []
    for path, methods in openapi_document()["paths"].items():
        for method, described in methods.items():
            names = tuple(str(one["name"]) for one in described.get("parameters", ()) if one.get("in") == "query")
            found += [(method.upper(), path, names)] if path != _ENDLESS else []
    return [*found, ("GET", "/", ()), ("PUT", "/api/v1/runs", ()), ("GET", "/nothing", ("run",))]


def fuzz(port: int, count: int, seed: int) -> Counter[int]:
    """Send random requests over one connection after another; returns the number of responses by status."""
    chance = random.Random(seed)
    known = routes()
    weights = [_SELDOM.get(path, 1.0) for _, path, _ in known]
    found: Counter[int] = Counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(count):
        method, path, body, headers = _request(chance, chance.choices(known, weights)[0])
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


def _request(chance: random.Random, route: Route) -> tuple[str, str, bytes | None, dict[str, str]]:
    method, path, names = route
    given = [(name, chance.choice(_VALUES)) for name in names if chance.random() < 0.3]
    if "run" in names and method != "DELETE" and chance.random() < 0.7:
        given.append(("run", "faults"))
    elif method == "DELETE":  # keep the run that the others read
        given = [(name, value) for name, value in given if value != "faults"]
    target = f"{path}?{'&'.join(f'{name}={value}' for name, value in given)}".replace(" ", "%20")
    headers = {"Content-Type": chance.choice(_OTHER_TYPES)}
    if chance.random() < 0.1:
        headers["Origin"] = chance.choice(("http://[", "null", "http://other"))
    if method == "GET":
        return method, target, None, headers
    body = _batch(chance) if path in _INGEST else _document(chance)
    if chance.random() < 0.2:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    return method, target, body, headers


def _document(chance: random.Random) -> bytes:
    """Return JSON of a random shape, sometimes damaged; names no host, so that nothing is scraped."""
    keys = (
        "run",
        "runs",
        "name",
        "notes",
        "tags",
        "views",
        "sql",
        "statement",
        "rules",
        "targets",
        "address",
        "labels",
    )
    values: tuple[Any, ...] = (None, True, -1, 2**63, 1e308, "", "x" * 300, [], {}, [1, None], {"a": {"b": []}})
    document = {key: chance.choice(values) for key in chance.sample(keys, chance.randrange(5))}
    text = bytearray(json.dumps(chance.choice((document, [document], *values))).encode())
    if chance.random() < 0.3:
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text)


def _batch(chance: random.Random) -> bytes:
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


def hold_connections(port: int, count: int, body_bytes: int = 999) -> list[socket.socket]:
    """Open connections that begin a request and never end it; refused ones are not returned."""
    head = (
        "POST /api/v1/ingest HTTP/1.1",
        "Host: 127.0.0.1",
        f"Content-Type: {CONTENT_TYPE}",
        "Content-Length: 32000000",
    )
    held = []
    for _ in range(count):
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=5)
            connection.sendall(("\r\n".join(head) + "\r\n\r\n").encode())
        except OSError:
            break
        held.append(connection)
        connection.settimeout(0.5)
        with contextlib.suppress(OSError):  # the server accepts no more for now, or refuses
            connection.sendall(bytes(body_bytes))
    return held


def open_streams(port: int, count: int) -> list[socket.socket]:
    """Open live streams; returns those that were accepted."""
    streams = []
    for _ in range(count):
        stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        stream.sendall(b"GET /api/v1/live?run=faults HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        if b"200" in stream.recv(200):
            streams.append(stream)
    return streams


class HostileServer:
    """Responds to each request differently: with nothing, a drip, a reset, an endless body, an error."""

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
        """Stop listening."""
        self._stop.set()
        self._listener.close()
