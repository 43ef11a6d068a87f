import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.request
from urllib.parse import urlsplit

import pytest

from rl_insight.server.state import read_record

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["*"]


ENVIRONMENT = {
    **os.environ,
    "RAY_AUTH_MODE": "disabled",
    # Ray would start a worker per CPU for the first driver, each 2 s of CPU time, whether it needs them or not.
    "RAY_prestart_worker_first_driver": "0",
}


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/ray/" in str(item.path):
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster in a separate process, so that drivers can come and go."""
    program = (
        "import ray, sys\n"
        "context = ray.init('local', num_cpus=8, include_dashboard=False, _node_ip_address='127.0.0.1')\n"
        "print(context.address_info['gcs_address'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    for _ in range(3):  # a busy machine may be too slow for Ray's own time limits
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=ENVIRONMENT,
        )
        address = process.stdout.readline().strip()
        if address:
            break
    assert address, "Ray does not start"
    yield address
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def start_driver(cluster, tmp_path):
    """Start a driver program in a separate process, as users do."""
    started = []

    def start(program, *, init=f"address={cluster!r}"):
        path = tmp_path / f"driver{len(started)}.py"
        path.write_text(
            "import ray, time, sys, os, json, logging, http.client\n"
            f"ray.init({init}, logging_level='ERROR', log_to_driver=False)\n"
            "import rl_insight as insight\n"
            "from rl_insight.hub.ray_hub import find_hub, hub_name, NAMESPACE\n" + HELPERS + textwrap.dedent(program)
        )
        process = subprocess.Popen(
            [sys.executable, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def run_driver(start_driver):
    """Run a driver program until it exits; returns its output."""

    def run(program, **options):
        process = start_driver(program, **options)
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-4000:]
        return out

    return run


class RunningServer:
    """A server in a separate process; it can be killed and restarted at the same address."""

    def __init__(self, data_dir):
        self.data_dir = data_dir
        self.port = 0
        self.start()

    def start(self):
        words = [
            f"port={self.port}",
            "otlp_http_port=null",
            "otlp_grpc_port=null",
            "scrape.interval_s=0.2",
            "sql.enabled=true",
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rl_insight.cli", "server", "start", "--data-dir", str(self.data_dir), *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 60
        while (record := read_record(self.data_dir)) is None or record.pid != self.process.pid:
            assert self.process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        self.url = record.url
        self.port = urlsplit(record.url).port

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return json.loads(answer.read())

    def targets(self):
        return self.get("/api/v1/targets")["targets"]

    def sql(self, run_id, sql):
        request = urllib.request.Request(
            f"{self.url}/api/v1/sql?run={run_id}",
            json.dumps({"sql": sql}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())["rows"]

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def server(tmp_path):
    """A real server."""
    server = RunningServer(tmp_path / "data")
    yield server
    server.kill()


HELPERS = """
def hubs():
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == NAMESPACE]

def status():
    return ray.get(find_hub().get_status.remote())

def wait_until(predicate, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if found := predicate():
                return found
        except (ray.exceptions.RayError, OSError, http.client.HTTPException):  # a hub that is just restarting
            pass
        time.sleep(0.1)
    raise SystemExit("timed out waiting")

def metrics():
    import urllib.request
    return urllib.request.urlopen(status()["metrics_url"], timeout=10).read().decode()

def value(line_start):
    for line in metrics().splitlines():
        if line.startswith(line_start):
            return float(line.rsplit(" ", 1)[1])
    return None
"""
