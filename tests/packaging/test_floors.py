"""The oldest versions of every dependency that pyproject.toml allows: they install together, and everything works."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.packaging.interpreters import interpreters
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

_RECORD = """
import rl_insight as insight
insight.init(project="math", experiment_name="floors", config=CONFIG)
for step in range(3):
    with insight.step(step), insight.trace_state("rollout", state_lane_id="trainer_0"):
        with insight.session(task_id=f"task-{step}") as sample, insight.phase("generate", tokens=512):
            sample.finalize("accepted", reward=1.0)
    insight.metric_gauge("reward_mean", 0.5)
    insight.metric_histogram("length", 512.0)
insight.monitor_hardware()
insight.finish()
"""


def _run(*words, **environment):
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def _install_floors(directory, version, *extras):
    """Return the folder of executables of an environment with the oldest allowed versions and this package."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if uv is None:
        pytest.skip("uv is not installed: `make setup` installs it")
    words = [word for extra in extras for word in ("--extra", extra)]
    floors, environment = directory / "floors.txt", directory / "environment"
    found = dict(interpreters()).get(version)
    if found is None:
        pytest.skip(f"there is no Python {version} here")
    _run(uv, "venv", "-q", "--python", found, environment)
    compiled = ("pip", "compile", "-q", ROOT / "pyproject.toml", "--resolution", "lowest-direct", *words)
    _run(uv, *compiled, "--python-version", version, "--output-file", floors)
    python = environment / "bin" / "python"
    _run(uv, "pip", "install", "-q", "--python", python, "--requirement", floors)
    _run(uv, "pip", "install", "-q", "--python", python, "--no-deps", ROOT)
    return environment / "bin"


def test_a_training_process_records_with_the_oldest_versions(tmp_path):
    programs = _install_floors(tmp_path, "3.10")
    script = tmp_path / "train.py"
    config = {"server": {"backend": "file"}, "file": {"directory": str(tmp_path / "events")}}
    script.write_text(_RECORD.replace("CONFIG", repr(config)))
    _run(programs / "python", script)
    assert [file for file in (tmp_path / "events").rglob("*") if file.is_file()]


@contextlib.contextmanager
def _server(programs, directory, *words, **environment):
    """Run a server from an environment; yields its status."""
    command, data = programs / "rl-insight", f"--data-dir={directory / 'data'}"
    _run(command, "server", "start", "--detach", data, "port=0", "otlp_http_port=0", *words, **environment)
    try:
        yield json.loads(_run(command, "server", "status", data, "--json"))
    finally:
        _run(command, "server", "stop", data)


def _train(programs, directory, program, url):
    script = directory / "train.py"
    script.write_text(program)
    _run(programs / "python", script, RL_INSIGHT_SERVER_URL=url)


def test_the_server_and_every_command_work_with_the_oldest_versions(tmp_path):
    programs = _install_floors(tmp_path, "3.11", "server", "fast", "grpc", "zstd")
    command, data = programs / "rl-insight", f"--data-dir={tmp_path / 'data'}"
    with _server(programs, tmp_path, "otlp_grpc_port=0") as status:
        assert status["otlp_grpc"]
        _train(programs, tmp_path, _RECORD.replace("CONFIG", "{}"), status["url"])
        wait_until(lambda: "generate" in _run(command, "hotspots", data))
        assert "task-2" in _run(command, "sessions", data)
    for kind in ("parquet", "csv", "jsonl", "chrome"):
        _run(command, "export", data, "--format", kind, "--output", tmp_path / f"out.{kind}")
        assert (tmp_path / f"out.{kind}").exists()
    _run(command, "import", tmp_path / "out.jsonl", f"--data-dir={tmp_path / 'again'}")


_ASK = """
import asyncio, sys
import mcp

async def ask():
    program = mcp.StdioServerParameters(command=sys.argv[1], args=["mcp", *sys.argv[2:]])
    async with mcp.stdio_client(program) as streams, mcp.ClientSession(*streams) as session:
        await session.initialize()
        return await session.call_tool("list_runs", {})

print(asyncio.run(ask()).content[0].text)
"""


def test_agents_and_warehouses_work_with_the_oldest_versions(tmp_path):
    programs = _install_floors(tmp_path, "3.11", "mcp", "warehouse")
    warehouse = tmp_path / "warehouse"
    # A folder reached through fsspec, which then makes folders as object stores do.
    words = [f"sinks.parquet.url=local://{warehouse}", "sinks.parquet.interval_s=1"]
    with _server(programs, tmp_path, *words, FSSPEC_LOCAL_AUTO_MKDIR="1") as status:
        _train(programs, tmp_path, _RECORD.replace("CONFIG", "{}"), status["url"])
        wait_until(lambda: list(warehouse.glob("spans/*/*/*.parquet")))
    agent = _run(programs / "python", "-c", _ASK, programs / "rl-insight", f"--data-dir={tmp_path / 'data'}")
    assert [run["experiment_name"] for run in json.loads(agent)["runs"]] == ["floors"]


_RAY = """
import ray
import rl_insight as insight
ray.init("local", num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1")
insight.init("math", "floors")

@ray.remote
def generate(number):
    with insight.session(task_id=f"task-{number}") as sample, insight.phase("generate"):
        sample.finalize("accepted", reward=1.0)

ray.get([generate.remote(number) for number in range(3)])
insight.finish()
ray.shutdown()
"""


def test_ray_tasks_are_recorded_with_the_oldest_version(tmp_path):
    programs = _install_floors(tmp_path, "3.11", "server", "ray")
    with _server(programs, tmp_path) as status:
        _train(programs, tmp_path, _RAY, status["url"])
        data = f"--data-dir={tmp_path / 'data'}"
        wait_until(lambda: "task-2" in _run(programs / "rl-insight", "sessions", data))
