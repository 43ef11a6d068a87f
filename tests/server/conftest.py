from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from rl_insight.schema import BatchBuilder, Process, encode, frame
from rl_insight.server.app import create_app, secured
from rl_insight.server.config import load_settings
from rl_insight.server.services import Services
from rl_insight.server.state import read_record
from rl_insight.store.runs import RunDirectory

FREE_PORTS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")


@pytest.fixture(scope="session")
def make_batch():
    """Make batches of spans named "work" whose ids are unique for each (process, sequence)."""

    def make(sequence=1, *, process_id="p1", run_id="r1", spans=3, **process):
        builder = BatchBuilder()
        for number in range(spans):
            builder.add_span(
                span_id=sequence * 1_000_000 + number + 1,
                trace=(1, 2),
                name="work",
                start_ns=time.time_ns(),
                duration_ns=1000,
            )
        who = Process(process_id=process_id, run_id=run_id, host="node", pid=1, **process)
        return builder.build(who, sequence=sequence, sent_ns=time.time_ns())

    return make


@pytest.fixture(scope="session")
def frames():
    return lambda *batches: b"".join(frame(encode(batch)) for batch in batches)


@pytest.fixture(scope="session")
def query():
    """Read a run from a data directory without a server, or from running services."""

    def read(place, run_id, sql):
        if isinstance(place, Services):
            with place.runs.open(run_id) as store, store.reader() as cursor:
                return cursor.execute(sql).fetchall()
        directory = RunDirectory(Path(place))
        try:
            with directory.open(run_id) as store, store.reader() as cursor:
                return cursor.execute(sql).fetchall()
        finally:
            directory.close()

    return read


@pytest.fixture
def make_services(tmp_path):
    made = []

    def make(*words, token=None, **options):
        settings = load_settings(words=words, options={"data_dir": str(tmp_path / "data"), **options})
        services = Services(settings, token=token)
        services.is_ready = True
        made.append(services)
        return services

    yield make
    for services in made:
        services.close()


@pytest.fixture
def services(make_services):
    return make_services()


class Client:
    """Sends requests to an application in this process, without a network."""

    def __init__(self, app, base_url):
        self._loop = asyncio.new_event_loop()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False, client=("127.0.0.1", 50_000))
        self._client = httpx.AsyncClient(transport=transport, base_url=base_url)

    def request(self, method, url, **options):
        if hasattr(options.get("content"), "__next__"):
            options["content"] = _asynchronously(options["content"])
        return self._loop.run_until_complete(self._client.request(method, url, **options))

    def get(self, url, **options):
        return self.request("GET", url, **options)

    def post(self, url, **options):
        return self.request("POST", url, **options)

    def close(self):
        self._loop.run_until_complete(self._client.aclose())
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()


async def _asynchronously(parts):
    for part in parts:
        yield part


@pytest.fixture
def client_of():
    clients = []

    def make(services, base_url="http://127.0.0.1"):
        client = Client(secured(create_app(services), services), base_url)
        clients.append(client)
        return client

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def client(services, client_of):
    return client_of(services)


class RunningServer:
    """A server in a separate process."""

    def __init__(self, data_dir, words, output):
        self.data_dir = Path(data_dir)
        self.output = output
        with self.output.open("wb") as stream:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rl_insight.cli", "server", "start", "--data-dir", str(data_dir), *words],
                stdout=stream,
                stderr=stream,
            )

    @property
    def record(self):
        record = read_record(self.data_dir)
        return record if record is not None and record.pid == self.process.pid else None

    @property
    def url(self):
        return self.record.url

    @property
    def text(self):
        return self.output.read_text()

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.process.wait(20)

    def end(self):
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait(10)


@pytest.fixture
def start_server(tmp_path, wait_until):
    servers = []

    def start(*words, data_dir=None, wait=True):
        server = RunningServer(
            data_dir or tmp_path / "data", [*FREE_PORTS, *words], tmp_path / f"output-{len(servers)}.txt"
        )
        servers.append(server)
        if wait:
            wait_until(lambda: server.record or server.process.poll() is not None)
            assert server.process.poll() is None, server.text
        return server

    yield start
    for server in servers:
        server.end()
