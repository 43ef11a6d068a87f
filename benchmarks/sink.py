"""A server in another process that acknowledges every batch and does nothing else until totals are requested."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import NamedTuple

from rl_insight.schema import decode, read_frames


class Totals(NamedTuple):
    """The events that have arrived."""

    spans: int
    counters: dict[str, float]
    """The latest total of each counter, summed over its label sets."""


class Sink:
    """The handle of a running sink."""

    def __init__(self, control: Connection) -> None:
        self._control = control
        self.url: str = control.recv()

    def take_totals(self) -> Totals:
        """Return the totals since the last call, and reset them."""
        self._control.send("totals")
        return Totals(*self._control.recv())


@contextlib.contextmanager
def running_sink() -> Iterator[Sink]:
    """Run a sink on loopback for a `with` block."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    try:
        yield Sink(ours)
    finally:
        ours.send("stop")
        process.join()


def _serve(control: Connection) -> None:
    import threading

    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    control.send(f"http://127.0.0.1:{server.server_address[1]}")
    while control.recv() != "stop":
        bodies, _Handler.bodies = _Handler.bodies, []
        control.send(tuple(_totals(bodies)))
    server.shutdown()


def _totals(bodies: list[bytes]) -> Totals:
    spans = 0
    latest: dict[tuple[str, str, str], float] = {}
    for body in bodies:
        for payload in read_frames(io.BytesIO(body)):
            batch = decode(payload)
            spans += len(batch.spans)
            for series, value in zip(batch.samples.column("series"), batch.samples.column("value"), strict=True):
                name = batch.text(batch.series.column("name")[series]) or ""
                labels = batch.text(batch.series.column("labels")[series]) or ""
                key = (batch.process.process_id, name, labels)
                latest[key] = max(value, latest.get(key, 0.0))
    counters: dict[str, float] = {}
    for (_process, name, _labels), total in latest.items():
        counters[name] = counters.get(name, 0.0) + total
    return Totals(spans, counters)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    bodies: list[bytes] = []  # noqa: RUF012  # intentionally shared by all connections

    def do_POST(self) -> None:  # the name that http.server calls
        self.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
        content = json.dumps({"accepted": 1}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_arguments: object) -> None:
        """Log nothing."""
