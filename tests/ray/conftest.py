import importlib.util
import os
import subprocess
import sys
import textwrap

import pytest

if importlib.util.find_spec("ray") is None:
    collect_ignore_glob = ["*"]


ENVIRONMENT = {**os.environ, "RAY_AUTH_MODE": "disabled"}


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/ray/" in str(item.path):
            item.add_marker(pytest.mark.ray)
            item.add_marker(pytest.mark.xdist_group("ray"))


@pytest.fixture(scope="session")
def cluster():
    """A Ray cluster of its own process, so that drivers come and go."""
    program = (
        "import ray, sys\n"
        "context = ray.init('local', num_cpus=8, include_dashboard=False, _node_ip_address='127.0.0.1')\n"
        "print(context.address_info['gcs_address'], flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )
    yield process.stdout.readline().strip()
    process.stdin.close()
    process.wait(60)
    process.stdout.close()


@pytest.fixture
def start_driver(cluster, tmp_path):
    """Start a driver program in a process of its own, as users do."""
    started = []

    def start(program, *, init=f"address={cluster!r}"):
        path = tmp_path / f"driver{len(started)}.py"
        path.write_text(
            "import ray, time, sys, os, json, logging\n"
            f"ray.init({init}, logging_level='ERROR', log_to_driver=False)\n"
            "import rl_insight as insight\n"
            "from rl_insight.collector.ray_hub import find_hub, hub_name, NAMESPACE\n"
            + HELPERS
            + textwrap.dedent(program)
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
    """Run a driver program to its end; returns what it printed."""

    def run(program, **options):
        process = start_driver(program, **options)
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors[-4000:]
        return out

    return run


HELPERS = """
def hubs():
    return [a["name"] for a in ray.util.list_named_actors(all_namespaces=True) if a["namespace"] == NAMESPACE]

def status():
    return ray.get(find_hub().get_status.remote())

def wait_until(predicate, timeout=60):
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        try:
            if predicate():
                return
        except ray.exceptions.RayError:  # a hub that is just restarting
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
