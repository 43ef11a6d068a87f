"""Different parts of the system report the same thing, seen from outside: over HTTP, at a receiver, in a file.

Nothing here imports more than the wire format, so that the tests do not depend on which part computes a result.
"""

from __future__ import annotations

import gzip
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.schema.records import records

RUN = "one-answer"
LEVELS = [10, 20, 25, 30, 40, 50, 60]
LATE = [1, *range(3, 604, 2), 2]
HEADERS = {"Content-Type": "application/vnd.rl-insight.frames"}


def process(process_id, **fields):
    return Process(process_id=process_id, run_id=RUN, host="node", pid=1, **fields)


def batch_of(who, sequence, *, delay_ns=5_000_000, final=False, attributes=None):
    builder = BatchBuilder()
    builder.add_span(
        span_id=sequence, trace=(1, 2), name="work", start_ns=time.time_ns(), duration_ns=1000, attributes=attributes
    )
    return builder.build(who, sequence=sequence, sent_ns=time.time_ns() - delay_ns, final=final)


class LogReceiver:
    """Receives OTLP logs."""

    def __init__(self):
        self.requests = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                if self.path.endswith("/v1/logs"):
                    receiver.requests.append(MessageToDict(ExportLogsServiceRequest.FromString(body)))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


class Observed:
    """Everything that a server reports about one run, queried while it ran and read from its files afterward."""

    def __init__(self, directory, receiver):
        self.directory = directory
        self.receiver = receiver
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        words = [f"port={port}", "otlp_http_port=null", "otlp_grpc_port=null"]
        words += [f"sinks.otlp.endpoint={receiver.url}", "sinks.otlp.signals=[logs]"]
        command = [sys.executable, "-m", "rl_insight.cli", "server", "start", "--data-dir", str(directory), *words]
        with (directory / "server.txt").open("wb") as output:
            self.server = subprocess.Popen(command, stdout=output, stderr=output)
        self.until(self._answers, lambda: self.server.poll() is not None)
        assert self.server.poll() is None, (directory / "server.txt").read_text()

    def until(self, *conditions):
        deadline = time.monotonic() + 60
        while not any(condition() for condition in conditions):
            assert time.monotonic() < deadline, conditions
            time.sleep(0.05)

    def _answers(self):
        try:
            return httpx.get(f"{self.url}/api/v1/runs").is_success
        except httpx.TransportError:
            return False

    def post(self, *batches):
        content = b"".join(frame(encode(batch)) for batch in batches)
        httpx.post(f"{self.url}/api/v1/ingest", content=content, headers=HEADERS, timeout=60).raise_for_status()

    def get(self, path, **parameters):
        answer = httpx.get(f"{self.url}/api/v1/{path}", params={"run": RUN, **parameters}, timeout=60)
        return answer.raise_for_status().json()

    def series(self, name):
        """Return the label string and value of each series of this name on /metrics."""
        name = f"rl_insight_monitor_{name}"
        lines = httpx.get(f"{self.url}/metrics", timeout=60).text.splitlines()
        return {
            line.rpartition(" ")[0].removeprefix(name): float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith((f"{name}{{", f"{name} "))
        }


def exported(directory):
    command = [sys.executable, "-m", "rl_insight.cli", "export", "--data-dir", str(directory), "--format", "otlp"]
    file = directory / "run.json"
    subprocess.run([*command, "--run", RUN, "--output", str(file)], check=True, capture_output=True)
    return [json.loads(line) for line in file.read_text().splitlines()]


def log_lines(requests):
    """Return the content of received OTLP logs: resource, scope, and each line's body and severity."""
    found = []
    for request in requests:
        for resource in request.get("resourceLogs", []):
            of_process = {item["key"]: item["value"] for item in resource["resource"]["attributes"]}
            for scope in resource["scopeLogs"]:
                for line in scope["logRecords"]:
                    severity = line["severityNumber"]
                    if isinstance(severity, str):  # JSON of protobuf writes the name of the enum
                        severity = (
                            ExportLogsServiceRequest.DESCRIPTOR.file.pool.FindEnumTypeByName(
                                "opentelemetry.proto.logs.v1.SeverityNumber"
                            )
                            .values_by_name[severity]
                            .number
                        )
                    attributes = sorted(item["key"] for item in line.get("attributes", []))
                    found.append(
                        (line["body"]["stringValue"], severity, scope["scope"].get("name"), attributes, of_process)
                    )
    return sorted(found, key=lambda line: line[0])


@pytest.fixture(scope="module")
def observed(tmp_path_factory):
    receiver = LogReceiver()
    seen = Observed(tmp_path_factory.mktemp("one-answer"), receiver)
    try:
        live, ended = process("live", heartbeat_s=60.0), process("ended")
        for sequence in range(1, 6):
            seen.post(batch_of(live, sequence))
        seen.post(batch_of(ended, 1, final=True))
        seen.post(batch_of(process("silent", heartbeat_s=0.01), 1))

        gaps = process("gaps", heartbeat_s=60.0)
        seen.post(*(batch_of(gaps, sequence) for sequence in LATE[:-1]))
        seen.post(batch_of(gaps, LATE[-1]))

        builder = BatchBuilder()
        for level in LEVELS:
            builder.add_log(time_ns=time.time_ns(), level=level, message=f"level {level}", logger="trainer.loss")
        seen.post(builder.build(process("logs", role="trainer", heartbeat_s=60.0), sequence=1, sent_ns=time.time_ns()))

        seen.post(batch_of(process("odd", heartbeat_s=60.0), 1, attributes="[9]"))
        yield seen
    finally:
        if seen.server.poll() is None:
            seen.server.send_signal(signal.SIGKILL)
        seen.server.wait(30)
        receiver.server.shutdown()
        receiver.server.server_close()


def test_one_clock_offset_for_a_process(observed):
    (listed,) = [row for row in observed.get("processes") if row["process_id"] == "live"]
    (shown,) = [
        value for labels, value in observed.series("collector_clock_offset_seconds").items() if '"live"' in labels
    ]
    assert shown == listed["clock_offset_ns"] / 1e9 == 0


def test_one_word_for_the_state_of_a_process(observed):
    def of_list():
        return Counter(row["state"] for row in observed.get("processes"))

    observed.until(lambda: len(of_list()) == 3)  # the silent one is heard of no more
    counted = {labels.split('"')[1]: value for labels, value in observed.series("collector_processes").items()}
    assert {state: value for state, value in counted.items() if value} == of_list()


def test_a_late_batch_is_new_for_everyone(observed):
    spans = observed.get("spans", process="gaps", limit=1000)
    rows = spans["spans"] if isinstance(spans, dict) else spans
    assert len([row for row in rows if row["process_id"] == "gaps"]) == len(LATE)


def test_one_name_for_attributes_that_cannot_be_read(observed):
    spans = observed.get("spans", limit=1000)
    rows = spans["spans"] if isinstance(spans, dict) else spans
    (listed,) = [row["attributes"] for row in rows if row["process_id"] == "odd"]
    (recorded,) = [record.attributes for record in records(batch_of(process("odd"), 1, attributes="[9]"))]
    assert listed == recorded


def test_one_otlp_log_line_live_and_in_a_file(observed):
    observed.until(lambda: len(log_lines(observed.receiver.requests)) == len(LEVELS))
    live = log_lines(observed.receiver.requests)
    observed.server.send_signal(signal.SIGTERM)
    observed.server.wait(60)
    assert log_lines(exported(observed.directory)) == live
