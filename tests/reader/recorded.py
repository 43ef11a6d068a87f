"""A small training run, recorded by real processes through a real server, for all tests that read runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FREE_PORTS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")
STEPS = 6
SESSIONS = 4

TRAINER = f"""
import logging, sys, time
import rl_insight as insight
settings = {{"recorder": {{"capture_text": True}}}}
insight.init("math", sys.argv[2], settings, run_id=sys.argv[1], role="trainer", rank=0)
insight.record_config({{"actor": {{"lr": 1e-6}}, "experiment": sys.argv[2]}})
for step in range({STEPS}):
    with insight.step(step):
        with insight.trace_state("rollout"):
            for number in range({SESSIONS}):
                facts = {{"session_id": f"s{{step}}-{{number}}", "group_id": f"g{{step}}", "model_version": step}}
                with insight.session(f"task-{{number}}", prompt="2 + 2?", **facts) as session:
                    with insight.phase("generate", response="It is 4."):
                        time.sleep(0.002)
                    session.finalize("accepted" if number else "failed", reward=0.25 * number)
        with insight.trace_state("update"):
            time.sleep(0.005)
        insight.metric_gauge("reward", step / 10)
        insight.metric_gauge("entropy", 2.0 - step / 10)
        insight.metric_count("samples", 8)
        insight.metric_gauge("actor/loss", step / 100)
        insight.metric_histogram("length", 10.0 * (step + 1))
        insight.log("WARNING", f"step {{step}} is slow", tokens=7)
        insight.trace_event("checkpoint", path="/x")
with insight.trace_span("update_critic", {{"nested": {{"a": [1, 2]}}}}):
    pass
insight.finish()
"""


def start_server(data_dir: Path, *words: str, **environment: str) -> None:
    """Start a server in the background; it is ready when this returns."""
    command = [sys.executable, "-m", "rl_insight.cli", "server", "start", "--detach", *FREE_PORTS, *words]
    done = subprocess.run(
        [*command, "--data-dir", str(data_dir)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def stop_server(data_dir: Path) -> None:
    command = [sys.executable, "-m", "rl_insight.cli", "server", "stop", "--data-dir", str(data_dir)]
    subprocess.run(command, capture_output=True, timeout=60, check=False)


def record(data_dir: Path, run_id: str, experiment: str = "grpo-7b") -> None:
    """Record a run through the server of a data directory."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RL_INSIGHT_")}
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, run_id, experiment],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment | {"RL_INSIGHT_DATA_DIR": str(data_dir)},
    )
    assert done.returncode == 0, done.stderr
