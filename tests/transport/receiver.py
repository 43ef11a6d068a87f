"""A server for transport tests: accepts frames over HTTP, each (process, sequence) once, and misbehaves on request."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import socket
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import zstandard

from rl_insight.schema import Batch, BatchBuilder, Process, decode, encode, read_frames
from rl_insight.schema.bundle import decode_bundle, is_bundle


def make_batch(sequence: int, process_id: str = "node7-1-aa", text: str = "hello") -> bytes:
    builder = BatchBuilder()
    builder.add_log(time_ns=1, level=20, message=text)
    process = Process(process_id=process_id, run_id="run", host="node7", pid=1)
    return encode(builder.build(process, sequence=sequence, sent_ns=1))


class Refusal(NamedTuple):
    status: int
    body: str = '{"error": "no"}'
    retry_after: str | None = None


class Request(NamedTuple):
    path: str
    sequences: list[int]
    encoding: str | None
    authorization: str | None
    content_type: str | None


class Receiver:
    """`answers` are used one by one; then every request is accepted."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.batches: dict[tuple[str, int], Batch] = {}
        self.duplicates = 0
        self.requests: list[Request] = []
        self.answers: list[Refusal | str] = []
        self.standing: Refusal | None = None
        self.poison: set[int] = set()
        self.knows_bundles = True
        self.bundles = 0
        self.hanging = threading.Event()
        self.resume = threading.Event()
        self._lock = threading.Lock()
        self._context = context
        self._port = 0
        self._server: _Server | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self._context else ''}://127.0.0.1:{self._port}"

    @property
    def sequences(self) -> list[int]:
        with self._lock:
            return sorted(sequence for _, sequence in self.batches)

    def start(self) -> None:
        self._server = _Server(("127.0.0.1", self._port), _Handler)
        self._server.receiver = self
        if self._context is not None:
            self._server.socket = self._context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            self.resume.set()
            server.shutdown()
            server.server_close()
            server.close_connections()

    def next_answer(self, batches: list[Batch]) -> Refusal | str | None:
        with self._lock:
            if self.answers:
                return self.answers.pop(0)
        if self.poison.intersection(batch.sequence for batch in batches):
            return Refusal(400, '{"error": "column spans.name holds 3 bytes."}')
        return self.standing

    def take(self, batches: list[Batch]) -> dict[str, int]:
        accepted = duplicates = 0
        with self._lock:
            for batch in batches:
                key = (batch.process.process_id, batch.sequence)
                if key in self.batches:
                    duplicates += 1
                else:
                    accepted += 1
                    self.batches[key] = batch
            self.duplicates += duplicates
        return {"accepted": accepted, "duplicates": duplicates, "later_field": 1}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: Receiver

    def __init__(self, *args) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request, client_address) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def close_connections(self) -> None:
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address) -> None:
        """Connections are broken intentionally in these tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self) -> None:
        receiver = self.server.receiver
        body = self.rfile.read(int(self.headers["Content-Length"]))
        encoding = self.headers.get("Content-Encoding")
        if encoding == "gzip":
            body = gzip.decompress(body)
        elif encoding == "zstd":
            body = zstandard.decompress(body)
        batches = []
        for payload in read_frames(io.BytesIO(body)):
            if is_bundle(payload):
                receiver.bundles += 1
                if not receiver.knows_bundles:
                    self._answer(400, '{"error": "not a batch: missing process."}')
                    return
                batches += decode_bundle(payload).batches()
            else:
                batches.append(decode(payload))
        receiver.requests.append(
            Request(
                self.path,
                [batch.sequence for batch in batches],
                encoding,
                self.headers.get("Authorization"),
                self.headers.get("Content-Type"),
            )
        )
        answer = receiver.next_answer(batches)
        if isinstance(answer, Refusal):
            self._answer(answer.status, answer.body, answer.retry_after)
            return
        if answer == "hang":
            receiver.hanging.set()
            receiver.resume.wait(60)
        receipt = receiver.take(batches)
        if answer == "drop":
            self.close_connection = True
            return
        self._answer(200, json.dumps(receipt))
        if answer == "close after":
            self.close_connection = True

    def _answer(self, status: int, text: str, retry_after: str | None = None) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if retry_after is not None:
            self.send_header("Retry-After", retry_after)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format, *args) -> None:  # noqa: A002 the name in the base class
        """Keep the test output clean."""
