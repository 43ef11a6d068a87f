"""No request exhausts the server's memory: small bodies that would become huge are refused before they are decoded."""

import gzip
import resource
import socket
import struct
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import grpc
import httpx
import msgspec
import pytest

from rl_insight.schema import frame
from rl_insight.transport.ingest_client import CONTENT_TYPE

PROTOBUF, JSON = "application/x-protobuf", "application/json"
MEBIBYTE = 1024 * 1024
MOST_MEBIBYTES = 200
"""What one request may add to the server's memory."""


def varint(number):
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def nested(content, *fields):
    """Wrap content in messages; the last field is the outermost."""
    for field in fields:
        content = varint(field << 3 | 2) + varint(len(content)) + content
    return content


def empty(count, field):
    return (varint(field << 3 | 2) + b"\0") * count


def spans(count):
    return nested(empty(count, 2), 2, 1)


def json_spans(count):
    return b'{"resourceSpans":[{"scopeSpans":[{"spans":[' + b"{}," * count + b"{}]}]}]}"


def metric_points(count):
    return nested(nested(empty(count, 1), 5) + nested(b"m", 1), 2, 2, 1)


def packed_buckets(count):
    return nested(nested(b"\1" * count, 2), 8, 1, 10, 2, 2, 1)


def native(field, entry, count):
    """Return a frame with a batch, one of whose lists has `count` entries."""
    whole = msgspec.msgpack.encode({"version": [1, 0], "process": {}, "sequence": 1, "sent_ns": 1})
    batch = bytes([whole[0] + 1]) + whole[1:] + msgspec.msgpack.encode(field)
    return frame(batch + b"\xdd" + struct.pack(">I", count) + entry * count)


MILLION = 1_000_000
BOMBS = {
    "empty spans": ("/v1/traces", PROTOBUF, lambda: spans(20 * MILLION)),
    "empty attributes": ("/v1/traces", PROTOBUF, lambda: nested(empty(20 * MILLION, 9), 2, 2, 1)),
    "empty resources": ("/v1/traces", PROTOBUF, lambda: empty(20 * MILLION, 1)),
    "empty points": ("/v1/metrics", PROTOBUF, lambda: metric_points(20 * MILLION)),
    "packed buckets": ("/v1/metrics", PROTOBUF, lambda: packed_buckets(40 * MILLION)),
    "empty records": ("/v1/logs", PROTOBUF, lambda: nested(empty(20 * MILLION, 2), 2, 1)),
    "JSON objects": ("/v1/traces", JSON, lambda: json_spans(15 * MILLION)),
    "JSON numbers": ("/v1/traces", JSON, lambda: b'{"x":[' + b"1000," * (8 * MILLION) + b"1]}"),
    "native strings": ("/api/v1/ingest", CONTENT_TYPE, lambda: native("strings", b"\xa0", 60 * MILLION)),
    "native losses": ("/api/v1/ingest", CONTENT_TYPE, lambda: native("losses", b"\x93\xa0\xa0\0", 8 * MILLION)),
}


class Memory:
    """The memory of a running server; limited, so that this machine is not affected."""

    def __init__(self, server):
        self._process = Path(f"/proc/{server.process.pid}")
        mapped = self._of("VmSize")
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, ((mapped + 2048) * MEBIBYTE,) * 2)

    def _of(self, name):
        lines = (self._process / "status").read_text().splitlines()
        return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(f"{name}:"))

    def __enter__(self):
        (self._process / "clear_refs").write_text("5")  # the peak begins anew
        self._before = self._of("VmRSS")
        return self

    def __exit__(self, *_):
        self.peak_growth = self._of("VmHWM") - self._before


def post(server, path, content_type, body, encoding="gzip"):
    headers = {"Content-Type": content_type, **({"Content-Encoding": encoding} if encoding else {})}
    return httpx.post(f"{server.url}{path}", content=body, headers=headers, timeout=60)


def test_no_small_body_takes_the_memory_of_the_server(start_server):
    server = start_server("max_decompression_ratio=2000")  # the counts must hold without the ratio
    memory = Memory(server)
    for name, (path, content_type, make) in BOMBS.items():
        body = gzip.compress(make(), 1)
        with memory:
            answer = post(server, path, content_type, body)
        assert answer.status_code in {400, 413}, (name, answer.text)
        assert memory.peak_growth < MOST_MEBIBYTES, (name, memory.peak_growth)
        assert b"the limit is" in answer.content or b"more than 250000" in answer.content, (name, answer.content)


def test_a_long_plain_body_of_empty_spans_is_refused(start_server):
    server = start_server()
    with Memory(server) as memory:
        answer = post(server, "/v1/traces", PROTOBUF, spans(8 * MILLION), encoding="")
    assert answer.status_code == 413
    assert b"max_request_items" in answer.content
    assert memory.peak_growth < MOST_MEBIBYTES


def test_a_body_beyond_the_ratio_is_refused(start_server):
    server = start_server()
    answer = post(server, "/v1/traces", PROTOBUF, gzip.compress(bytes(100 * MEBIBYTE), 9))
    assert answer.status_code == 413
    assert b"the limit is 16777216 bytes" in answer.content


def test_the_largest_request_that_is_taken_fits(start_server):
    server = start_server()
    one = struct.pack("<BB16sBB8sBQ", 0x0A, 16, b"t" * 16, 0x12, 8, b"s" * 8, 0x39, time.time_ns())
    content = b"".join(nested(one[:20] + struct.pack(">Q", number) + one[28:], 2) for number in range(1, 240_000))
    with Memory(server) as memory:
        answer = post(server, "/v1/traces", PROTOBUF, nested(content, 2, 1), encoding="")
    assert answer.status_code == 200, answer.content
    assert memory.peak_growth < 400


def test_a_bomb_over_grpc_is_refused(start_server):
    server = start_server()
    method = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
    with Memory(server) as memory, grpc.insecure_channel(server.record.otlp_grpc_address) as channel:
        call = channel.unary_unary(method)
        with pytest.raises(grpc.RpcError) as error:
            call(spans(30 * MILLION), timeout=60, compression=grpc.Compression.Gzip)
        assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        with pytest.raises(grpc.RpcError) as error:
            call(spans(2 * MILLION), timeout=60, compression=grpc.Compression.Gzip)
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert memory.peak_growth < MOST_MEBIBYTES


def test_unfinished_bodies_share_one_budget(start_server, make_batch, frames):
    server = start_server(f"max_inflight_bytes={64 * MEBIBYTE}")
    address = urlsplit(server.url)
    head = (
        f"POST /v1/traces HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {PROTOBUF}\r\nContent-Length: 32000000\r\n\r\n"
    )
    with Memory(server) as memory, ExitStack() as stack:
        answers = []
        for _ in range(20):
            sender = stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=30))
            sender.sendall(head.encode())
            try:
                sender.sendall(bytes(16 * MEBIBYTE))
                sender.settimeout(0.05)
                answers.append(sender.recv(12))
            except TimeoutError:
                answers.append(b"")  # the server waits for the rest
            except ConnectionError:
                answers.append(b"closed")
        assert answers.count(b"") <= 4
        overload = post(server, "/api/v1/ingest", CONTENT_TYPE, frames(make_batch(1)), encoding="")
        assert overload.status_code in {200, 503}
    assert memory.peak_growth < 200
    deadline = time.monotonic() + 20
    while (answer := post(server, "/api/v1/ingest", CONTENT_TYPE, frames(make_batch(1)), encoding="")).is_error:
        assert time.monotonic() < deadline, answer.text
    assert answer.json()["accepted"] + answer.json()["duplicates"] == 1
