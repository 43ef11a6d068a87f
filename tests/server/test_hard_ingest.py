"""Bad, slow and unlucky ingest: only 4xx for bad input, and later requests are accepted."""

import base64
import gzip
import json
import random
import signal
import socket
import threading
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
import zstandard
from google.protobuf import json_format
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rl_insight.transport.ingest_client import CONTENT_TYPE

NATIVE = {"Content-Type": CONTENT_TYPE}
COUNT = "SELECT count(*) FROM spans"
COMPRESS = {"": bytes, "gzip": gzip.compress, "zstd": zstandard.compress}


def traces():
    request = ExportTraceServiceRequest()
    span = (
        request.resource_spans.add()
        .scope_spans.add()
        .spans.add(
            name="generate", span_id=b"\1" * 8, trace_id=b"\2" * 16, start_time_unix_nano=5, end_time_unix_nano=9
        )
    )
    span.attributes.add(key="tokens").value.int_value = 7
    return request


def metrics():
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(name="reward")
    metric.gauge.data_points.add(as_double=0.5, time_unix_nano=5)
    return request


def logs():
    request = ExportLogsServiceRequest()
    request.resource_logs.add().scope_logs.add().log_records.add(time_unix_nano=5).body.string_value = "line"
    return request


def otlp_json(request):
    """Return a request as OTLP JSON: ids are hexadecimal, not base64."""
    text = json_format.MessageToJson(request)
    for number in (b"\1" * 8, b"\2" * 16):
        text = text.replace(base64.b64encode(number).decode(), number.hex())
    return text.encode()


OTLP = {"traces": traces, "metrics": metrics, "logs": logs}


def mutated(good, source):
    """Return valid bytes with some changed, removed or inserted, or pure noise."""
    if source.random() < 0.2:
        return source.randbytes(source.randrange(1, 200))
    body = bytearray(good)
    for _ in range(source.randrange(0, 5)):
        body[source.randrange(len(body))] = source.randrange(256)
    if source.random() < 0.5:
        del body[source.randrange(1, len(body) + 1) :]
    if source.random() < 0.2:
        body += source.randbytes(20)
    return bytes(body)


@pytest.mark.parametrize("encoding", COMPRESS)
@pytest.mark.parametrize("is_damaged_inside", [True, False], ids=["inside", "outside"])
@pytest.mark.parametrize("route", ["native", *(f"{signal}-{kind}" for signal in OTLP for kind in ("protobuf", "json"))])
def test_damaged_bodies_give_4xx_and_the_next_good_one_is_taken(
    client, make_batch, frames, route, encoding, is_damaged_inside
):
    compress = COMPRESS[encoding]
    headers = {"Content-Encoding": encoding} if encoding else {}
    if route == "native":
        path, good = "/api/v1/ingest", frames(make_batch(1), make_batch(2))
        headers |= NATIVE
    else:
        name, _, kind = route.partition("-")
        request = OTLP[name]()
        path = f"/v1/{name}"
        good = otlp_json(request) if kind == "json" else request.SerializeToString()
        headers["Content-Type"] = "application/json" if kind == "json" else "application/x-protobuf"
    source = random.Random(f"{route} {encoding} {is_damaged_inside}")
    for _ in range(40):
        # Damage under the compression reaches the decoders, damage to it the decompressors.
        body = compress(mutated(good, source)) if is_damaged_inside else mutated(compress(good), source)
        assert client.post(path, content=body, headers=headers).status_code in {200, 400, 413, 415}
    assert client.post(path, content=compress(good), headers=headers).status_code == 200
    answer = client.post("/api/v1/ingest", content=frames(make_batch(77)), headers=NATIVE)
    assert answer.json() == {"accepted": 1, "duplicates": 0}


def drip(url, request, done):
    """Send the headers of a request, then occasional bytes; returns the response before the connection was closed."""
    host, port = urlsplit(url).hostname, urlsplit(url).port
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(request.replace(b"HOST", f"{host}:{port}".encode()))
        answer = b""
        connection.settimeout(0.05)
        while not done.is_set():
            try:
                part = connection.recv(65536)
            except TimeoutError:
                connection.sendall(b" ")
                continue
            except ConnectionError:
                return answer
            if not part:
                return answer
            answer += part
    return answer


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/api/v1/ingest", CONTENT_TYPE),
        ("/v1/traces", "application/json"),
        ("/api/v1/sql", "application/json"),
        ("/api/v1/runs/file", "application/vnd.rl-insight.run"),
    ],
)
def test_a_body_that_drips_in_is_abandoned_and_others_are_served(start_server, make_batch, frames, path, content_type):
    server = start_server("body_timeout_s=0.5")
    lines = (f"POST {path} HTTP/1.1", "Host: HOST", f"Content-Type: {content_type}", "Content-Length: 1000000", "", "")
    request = "\r\n".join(lines).encode()
    answers = []
    done = threading.Event()
    slow = threading.Thread(target=lambda: answers.append(drip(server.url, request, done)), daemon=True)
    slow.start()
    try:
        fast = httpx.post(f"{server.url}/api/v1/ingest", content=frames(make_batch(1)), headers=NATIVE, timeout=20)
        assert fast.json() == {"accepted": 1, "duplicates": 0}
        slow.join(30)
        assert not slow.is_alive(), "the server still waits for the body"
    finally:
        done.set()
    head, _, body = answers[0].partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    assert "did not arrive in time" in json.loads(body)["error"]
    refused = httpx.get(f"{server.url}/api/v1/status", timeout=20).json()["refused"]
    assert {"route": "http", "reason": "slow", "count": 1} in refused


def test_a_long_question_is_refused(make_services, client_of):
    client = client_of(make_services("max_body_bytes=2048"))
    answer = client.post("/api/v1/sql", json={"sql": "SELECT 1" + " " * 5000})
    assert (answer.status_code, "the limit is 2048 bytes" in answer.json()["error"]) == (413, True)


def test_a_disk_that_fills_up_gives_clear_errors_and_writing_continues_when_there_is_room(
    start_server, make_batch, frames, query, wait_until
):
    if not hasattr(psutil.Process, "rlimit"):
        pytest.skip("this system cannot limit the files of another process")
    server = start_server()
    process = psutil.Process(server.process.pid)
    no_limit = process.rlimit(psutil.RLIMIT_FSIZE)
    bodies = [frames(make_batch(sequence, spans=2000)) for sequence in range(1, 31)]
    with httpx.Client(timeout=60) as client:

        def send(number):
            return client.post(f"{server.url}/api/v1/ingest", content=bodies[number], headers=NATIVE)

        assert send(0).status_code == 200
        # From here on no file can grow much: a write in the middle of a commit fails, as on a full disk.
        process.rlimit(psutil.RLIMIT_FSIZE, (2_000_000, no_limit[1]))
        taken = 1
        while (refused := send(taken)).status_code == 200:
            taken += 1
        for answer in (refused, send(taken), send(taken + 1)):
            assert (answer.status_code, answer.json()["accepted"]) == (503, 0)
            assert "the disk is full. Free some space; writing resumes then." in answer.json()["error"]
            assert int(answer.headers["Retry-After"]) >= 1
        process.rlimit(psutil.RLIMIT_FSIZE, no_limit)
        wait_until(lambda: send(taken).status_code == 200)
        for number in range(taken + 1, len(bodies)):
            assert send(number).status_code == 200
    assert server.signal() == 0
    rows = query(server.data_dir, "r1", "SELECT count(*), count(DISTINCT span_id) FROM spans")
    assert rows == [(len(bodies) * 2000, len(bodies) * 2000)]
    assert list((server.data_dir / "runs").glob("*.corrupt-*")) == []


def test_two_servers_with_different_data_directories_do_not_meet(start_server, make_batch, frames, query, tmp_path):
    servers = [start_server(data_dir=tmp_path / name) for name in ("one", "two")]
    for number, server in enumerate(servers):
        body = frames(*(make_batch(sequence) for sequence in range(1, 2 + number)))
        assert httpx.post(f"{server.url}/api/v1/ingest", content=body, headers=NATIVE, timeout=20).status_code == 200
    assert servers[0].signal(signal.SIGKILL) == -signal.SIGKILL
    later = frames(make_batch(9))
    assert httpx.post(f"{servers[1].url}/api/v1/ingest", content=later, headers=NATIVE, timeout=20).status_code == 200
    assert servers[1].signal() == 0
    assert [query(server.data_dir, "r1", COUNT) for server in servers] == [[(3,)], [(9,)]]


def test_retention_leaves_runs_alone_that_are_being_written(make_services, client_of, make_batch, frames, query):
    """More runs are written than files may be open, and there is room for none of them."""
    services = make_services("retention.max_total_gb=0.000001", "retention.interval_s=0.1", "store.max_open_runs=1")
    client = client_of(services)
    for sequence in range(1, 9):
        body = frames(*(make_batch(sequence, run_id=f"run{number}") for number in range(3)))
        assert client.post("/api/v1/ingest", content=body, headers=NATIVE).json()["accepted"] == 3
        services.apply_retention()
    assert [query(services, f"run{number}", COUNT) for number in range(3)] == [[(24,)]] * 3
