"""Fixtures for all tests: waiting for a condition, and a real Prometheus."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from tests import zygote
from tests.waiting import wait_until

subprocess.Popen = zygote.Popen

# A shell starts background jobs with SIGINT ignored, and so would every program that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

with contextlib.suppress(ImportError):  # as in the environment of the frameworks
    from hypothesis import settings

    settings.register_profile("short", max_examples=25, deadline=None)
    settings.register_profile("long", max_examples=300, deadline=None)  # `make soak`
    settings.load_profile("short")


@pytest.fixture
def executed(monkeypatch):
    """Start every program as users do, with all of its imports."""
    monkeypatch.setattr(subprocess, "Popen", zygote.Executed)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Run all tests of a file in one worker: shared resources, such as a server with a run, are created once."""
    if not config.pluginmanager.hasplugin("xdist"):  # as in the environment of the frameworks
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is None and "/ray/" not in str(item.path):
            item.add_marker(pytest.mark.xdist_group(item.path.relative_to(item.config.rootpath).as_posix()))


@pytest.fixture(scope="session", name="wait_until")
def wait_until_fixture():
    """Wait for a condition: `wait_until(predicate, timeout_s)` returns its first true result."""
    return wait_until


@pytest.fixture(scope="session")
def report_bundle():
    """Skip if the report page was not built: `make web` builds it, and so does `make test`."""
    folder = Path(__file__).parents[1] / "src" / "rl_insight" / "server" / "static" / "report"
    if not (folder / "report.js").exists():
        pytest.skip("the report page is not built: run `make web`")


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _get(url):
    with urllib.request.urlopen(url, timeout=10) as response:
        return response.read()


class PrometheusServer:
    """A running Prometheus that scrapes the given targets every 200 ms; it can be stopped and started again."""

    program_name = "prometheus"
    ready_path = "/-/ready"

    def __init__(self, directory: Path, targets: list[str], arguments: tuple[str, ...] = ()):
        self.directory = directory
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = directory / f"{self.program_name}.log"
        self.program = None
        self.command = [shutil.which(self.program_name), *self.options(targets), *arguments]
        self.start()

    def options(self, targets):
        config = self.directory / "prometheus.yml"
        scrape = {"job_name": "test", "scrape_interval": "200ms", "static_configs": [{"targets": targets}]}
        config.write_text(json.dumps({"scrape_configs": [scrape] if targets else []}))
        return [
            f"--config.file={config}",
            f"--storage.tsdb.path={self.directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
        ]

    def start(self):
        with self.log.open("ab") as log:
            self.program = subprocess.Popen(
                self.command, stdout=log, stderr=log, cwd=self.directory, env={**os.environ, "GOMAXPROCS": "1"}
            )
        wait_until(self._ready, 60.0)

    def _ready(self):
        if self.program.poll() is not None:
            pytest.fail(f"{self.program_name} ended: {self.log.read_text()[-2000:]}")
        try:
            return _get(f"{self.url}{self.ready_path}")
        except OSError:
            return False

    def api(self, path, **parameters):
        query = urllib.parse.urlencode(parameters)
        return json.loads(_get(f"{self.url}/api/v1/{path}?{query}"))["data"]

    def query(self, expression):
        """Return ``[(labels, value)]`` of an instant query."""
        result = self.api("query", query=expression)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def wait_for(self, expression):
        """Wait until a query returns a result."""
        return wait_until(lambda: self.query(expression), 30.0)

    def wait_for_next_scrape(self):
        """Wait until a scrape that begins from now on has been stored."""
        now = time.time()
        wait_until(lambda: any(value > now for _, value in self.query("timestamp(up) - scrape_duration_seconds")), 30.0)

    def stop(self):
        self.program.terminate()
        self.program.wait(30)

    def close(self):
        self.stop()


class VictoriaMetricsServer(PrometheusServer):
    """A running VictoriaMetrics, which answers the same queries and accepts remote-write."""

    program_name = "victoria-metrics"
    ready_path = "/health"

    def options(self, targets):
        return [
            f"-httpListenAddr=127.0.0.1:{self.port}",
            f"-storageDataPath={self.directory / 'data'}",
            "-retentionPeriod=100y",
            "-search.latencyOffset=0s",
            "-search.disableCache",
            "-memory.allowedBytes=256MiB",
        ]

    def query(self, expression):
        # What has just arrived becomes visible at once.
        _get(f"{self.url}/internal/force_flush")
        return super().query(expression)


def _starter(kind, tmp_path):
    if shutil.which(kind.program_name) is None:
        pytest.skip(f"the program {kind.program_name} is not installed")
    started = []

    def start(targets=(), *arguments):
        directory = tmp_path / f"{kind.program_name}{len(started)}"
        directory.mkdir()
        started.append(kind(directory, list(targets), arguments))
        return started[-1]

    yield start
    for server in started:
        server.close()


@pytest.fixture
def start_prometheus(tmp_path):
    """Start a real Prometheus: `start_prometheus(["127.0.0.1:1234"], "--flag")` returns a `PrometheusServer`."""
    yield from _starter(PrometheusServer, tmp_path)


@pytest.fixture
def start_victoria_metrics(tmp_path):
    """Start a real VictoriaMetrics: `start_victoria_metrics()` returns a `VictoriaMetricsServer`."""
    yield from _starter(VictoriaMetricsServer, tmp_path)
