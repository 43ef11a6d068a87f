"""A server in a separate process: start, announce, stop, and what can prevent them."""

import json
import os
import signal
import socket
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from rl_insight.config.paths import find_local_server
from rl_insight.transport.ingest_client import CONTENT_TYPE


def get(url, context=None, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=context) as answer:
        return answer.read().decode()


def post(url, body, **headers):
    request = urllib.request.Request(
        f"{url}/api/v1/ingest", data=body, headers={"Content-Type": CONTENT_TYPE, **headers}, method="POST"
    )
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


@pytest.mark.usefixtures("executed")
def test_a_server_announces_itself_and_its_state_is_for_its_owner_alone(start_server, wait_until):
    server = start_server()
    assert get(f"{server.url}/readyz") == "ready\n"
    wait_until(lambda: f"RL-Insight is running at {server.url}" in server.text)
    path = server.data_dir / "server.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = find_local_server(server.data_dir)
    assert (found.pid, found.url, found.token) == (server.process.pid, server.url, None)
    assert server.signal() == 0
    assert not path.exists()


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_what_was_accepted_is_stored_when_the_server_stops(start_server, make_batch, frames, query, number, code):
    server = start_server()
    assert post(server.url, frames(*(make_batch(n) for n in range(1, 30)))) == {"accepted": 29, "duplicates": 0}
    assert server.signal(number) == code
    assert query(server.data_dir, "r1", "SELECT count(*) FROM spans") == [(87,)]


def test_a_server_removes_the_transfers_that_a_killed_one_left(start_server, tmp_path):
    server = start_server()
    left = server.data_dir / ".transfer-left"
    left.mkdir()
    (left / "run").write_bytes(b"a part")
    server.signal(signal.SIGKILL)
    assert start_server().data_dir == server.data_dir
    assert not left.exists()


def test_a_second_server_on_the_same_data_says_who_is_there(start_server):
    first = start_server()
    second = start_server(wait=False)
    assert second.process.wait(20) == 0
    assert f"A server is already running at {first.url}" in second.text
    assert "Traceback" not in second.text
    assert get(f"{first.url}/healthz") == '{"status":"ok"}'


@pytest.mark.usefixtures("executed")
def test_the_state_of_a_killed_server_is_not_an_obstacle(start_server):
    first = start_server()
    first.signal(signal.SIGKILL)
    assert (first.data_dir / "server.json").exists()
    assert find_local_server(first.data_dir) is None
    second = start_server()
    assert get(f"{second.url}/readyz") == "ready\n"


def test_a_taken_port_is_a_clear_sentence(start_server):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for key in ("port", "otlp_http_port", "otlp_grpc_port"):
            server = start_server(f"{key}={port}", wait=False)
            assert server.process.wait(20) == 1
            assert f"port {port} on 127.0.0.1 is in use by another program" in server.text
            assert f"{key}=PORT" in server.text
            assert "Traceback" not in server.text


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["prot=1"], 2, "did you mean 'port'?"),
        (["host=nowhere.invalid"], 1, "not an address of this machine"),
        (["host=192.0.2.1"], 1, "not an address of this machine"),
        (["--config=/nowhere.yaml"], 2, "cannot read the configuration file"),
        (["store.min_free_bytes=1000000000000000"], 1, "free on the disk"),
        (["--frobnicate"], 2, "No such option"),
    ],
)
def test_every_obstacle_is_one_sentence_and_a_documented_code(start_server, words, code, said):
    server = start_server(*words, wait=False)
    assert server.process.wait(20) == code
    assert said in " ".join(server.text.split())
    assert "Traceback" not in server.text


def test_a_data_directory_that_cannot_be_used_is_a_clear_sentence(start_server, tmp_path):
    (tmp_path / "file").write_text("")
    server = start_server(data_dir=tmp_path / "file" / "data", wait=False)
    assert server.process.wait(20) == 1
    assert "cannot use the data directory" in server.text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_of_another_user_is_a_clear_error(start_server):
    server = start_server(data_dir="/root/rl-insight", wait=False)
    assert server.process.wait(20) == 1
    assert "permission denied" in server.text


def test_any_address_but_loopback_makes_a_token_and_asks_for_it(start_server, wait_until, make_batch, frames):
    server = start_server("host=0.0.0.0")
    token = server.record.token
    assert token
    wait_until(lambda: token in server.text)  # printed after the record that start_server waits for
    assert find_local_server(server.data_dir).token == token
    with pytest.raises(urllib.error.HTTPError) as refused:
        post(server.url, frames(make_batch(1)))
    assert refused.value.code == 401
    refused.value.close()
    assert post(server.url, frames(make_batch(1)), Authorization=f"Bearer {token}")["accepted"] == 1
    otlp = server.record.otlp_http_url
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(urllib.request.Request(f"{otlp}/v1/traces", data=b"", method="POST"))
    assert refused.value.code == 401
    refused.value.close()
    import grpc
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

    with grpc.insecure_channel(server.record.otlp_grpc_address) as channel:
        stub = TraceServiceStub(channel)
        with pytest.raises(grpc.RpcError) as denied:
            stub.Export(ExportTraceServiceRequest())
        assert denied.value.code() is grpc.StatusCode.UNAUTHENTICATED
        stub.Export(ExportTraceServiceRequest(), metadata=[("authorization", f"Bearer {token}")])


@pytest.mark.usefixtures("executed")
def test_an_alert_of_a_server_on_all_addresses_links_to_its_machine_and_the_port_that_it_really_has(
    start_server, tmp_path, wait_until, frames
):
    from rl_insight.schema import BatchBuilder, Process

    told = tmp_path / "told.json"
    server = start_server("host=0.0.0.0", f"alerts.command=cat >> '{told}'", "diagnosis.interval_s=0.1")
    builder = BatchBuilder()
    now_ns = time.time_ns()
    builder.add_span(span_id=1, trace=(1, 1), name="work", start_ns=now_ns - 2_000_000_000, duration_ns=1_000_000_000)
    builder.add_event(time_ns=now_ns, name="alert", attributes=json.dumps({"title": "down", "level": "critical"}))
    who = Process(process_id="p1", run_id="r1", host="node", pid=1, role="trainer", rank=0)
    batch = builder.build(who, sequence=1, sent_ns=now_ns, final=False)
    assert post(server.url, frames(batch), Authorization=f"Bearer {server.record.token}")["accepted"] == 1
    alert = json.loads(wait_until(lambda: told.exists() and told.read_text()))
    assert server.url.startswith("http://127.0.0.1:")
    port = server.url.rpartition(":")[2]
    assert alert["link"].startswith(f"http://{socket.gethostname()}:{port}/?run=r1#/findings?finding=")


@pytest.mark.usefixtures("executed")
def test_with_a_certificate_all_ports_speak_tls(start_server, tmp_path, make_batch, frames):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True,
        capture_output=True,
    )  # fmt: skip
    server = start_server(f"tls_cert={os.path.relpath(certificate)}", f"tls_key={key}")
    assert server.url.startswith("https://")
    assert server.record.tls_cert == str(Path.cwd() / os.path.relpath(certificate))  # clients have other directories
    context = ssl.create_default_context(cafile=str(certificate))
    assert get(f"{server.url}/readyz", context=context) == "ready\n"

    from rl_insight.schema import encode
    from rl_insight.transport.http import HttpTransport

    transport = HttpTransport(server.url, process_id="p1", spool_dir=tmp_path / "spool", ca_file=str(certificate))
    transport.send(encode(make_batch(1)))
    assert transport.flush(10)
    transport.close()
    import grpc
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

    credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
    with grpc.secure_channel(server.record.otlp_grpc_address, credentials) as channel:
        TraceServiceStub(channel).Export(ExportTraceServiceRequest(), timeout=10)


def test_a_certificate_that_is_none_is_bad_configuration(start_server, tmp_path):
    path = tmp_path / "cert.pem"
    path.write_text("not a certificate")
    server = start_server(f"tls_cert={path}", f"tls_key={path}", wait=False)
    assert server.process.wait(20) == 2
    assert "tls_cert and tls_key cannot be used" in server.text


def test_ports_for_otlp_can_be_turned_off(start_server):
    server = start_server("otlp_http_port=null", "otlp_grpc_port=null")
    assert (server.record.otlp_http_url, server.record.otlp_grpc_address) == (None, None)


_WITHOUT_EXTRAS = """
import sys
sys.modules.update(dict.fromkeys(("grpc", "pandas", "polars", "pyarrow", "uvloop", "zstandard")))
from rl_insight.cli import main
sys.exit(main(sys.argv[1:]))
"""


def start_without_extras(tmp_path, *words):
    command = [sys.executable, "-c", _WITHOUT_EXTRAS, "server", "start", f"--data-dir={tmp_path / 'data'}"]
    return subprocess.Popen(
        [*command, "port=0", "otlp_http_port=0", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
def test_without_extras_only_otlp_over_grpc_is_off_and_the_output_says_why(
    tmp_path, wait_until, make_batch, frames, number, code
):
    server = start_without_extras(tmp_path)
    try:
        wait_until(lambda: find_local_server(tmp_path / "data") or server.poll() is not None)
        url = find_local_server(tmp_path / "data").url
        assert get(f"{url}/readyz") == "ready\n"
        assert post(url, frames(make_batch(1))) == {"accepted": 1, "duplicates": 0}
        assert len(json.loads(get(f"{url}/api/v1/spans"))) == 3
    finally:
        server.send_signal(number)
        output = server.communicate(timeout=30)[0]
    assert server.returncode == code
    assert 'off without "rl-insight[grpc]" (gRPC)' in output
    assert "Traceback" not in output
    assert "leaked" not in output
    log = (tmp_path / "data" / "server.log").read_text()
    assert log.count('OTLP over gRPC is off: grpcio is not installed. Install it: pip install "rl-insight[grpc]".') == 1


def test_a_grpc_port_that_was_asked_for_needs_grpcio(tmp_path):
    server = start_without_extras(tmp_path, "otlp_grpc_port=0")
    output = server.communicate(timeout=30)[0]
    assert server.returncode == 1
    assert "cannot listen for OTLP over gRPC on port 0: grpcio is not installed" in output
    assert "Traceback" not in output
