"""How well diagnosis detects faults in a real training run, and how few false alarms a healthy one raises.

    python -m benchmarks diagnosis_example
    python -m benchmarks diagnosis_example --minutes 10    # ten healthy runs of 10 minutes as well

Each fault is injected in the middle of `examples.async_grpo`, several runs at a time, all recorded by one server. It
must be reported within 30 s, or within 5 steps if those take longer.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Figure, Options
from benchmarks.server_process import ServerProcess, connect, running_server

NAME = "diagnosis_example"
AT_ONCE = 4
FAULT_AT = 20
IN_TIME_S, IN_TIME_STEPS = 30.0, 5
_PATIENCE_S = 600.0
_AFTER_S = 120.0
"""How long to wait for a fault once its step has begun."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected finding about a fault of the example."""

    fault: str
    rules: tuple[str, ...]
    culprit: Mapping[str, Any] = field(default_factory=dict)


FAULTS = (
    Expected("slow_tool", ("slow_tool",), {"tool": "calculator"}),
    Expected("tool_errors", ("tool_errors",), {"tool": "calculator"}),
    Expected("slow_reward", ("slow_reward",), {"phase": "reward"}),
    Expected("blocked_reward", ("blocked_reward", "stalled_run", "stuck_session"), {"phase": "reward"}),
    Expected("failing_reward", ("failing_reward",), {"phase": "reward"}),
    Expected("zero_reward", ("failing_reward", "constant_reward", "reward_drop")),
    Expected("slow_rollout", ("straggler",), {"role": "rollout", "rank": 1}),
    Expected("dead_rollout", ("dead_engine",), {"role": "rollout", "rank": 1}),
    Expected("slow_update", ("step_regression",), {"phase": "update"}),
    Expected("stuck_update", ("stalled_run",), {"role": "trainer", "phase": "update"}),
    Expected("slow_sync", ("slow_weight_sync",), {"phase": "sync_weights"}),
    Expected("stuck_sync", ("stuck_weight_sync", "stalled_run"), {"phase": "sync_weights"}),
    Expected("slow_data", ("data_starvation",), {"phase": "load_data"}),
    Expected("lost_time", ("unattributed_time",)),
    Expected("not_a_number", ("non_finite",), {"metric": "loss"}),
    Expected("kl_blowup", ("kl_blowup",), {"metric": "kl"}),
    Expected("stale", ("stale_samples",)),
)
HEALTHY = (
    (), ("--workers", "1"), ("--workers", "4"), ("--speed", "2"), ("--slow-start", "8"), ("--evaluate-every", "10"),
    ("--checkpoint-every", "7"), ("--evaluate-every", "15", "--checkpoint-every", "15", "--slow-start", "5"),
    ("--checkpoint-every", "5", "--resume"), ("--speed", "0.5", "--evaluate-every", "6"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Named:
    """The finding about a fault, and when it was reported."""

    finding: Mapping[str, Any] | None
    seconds: float = 0.0
    steps: int = 0


@contextlib.contextmanager
def training(server: ServerProcess, run_id: str, folder: Path, *options: str) -> Iterator[None]:
    """Run the example for as long as the block takes."""
    environ = os.environ | {"RL_INSIGHT_RUN_ID": run_id, "TMPDIR": str(folder), "OMP_NUM_THREADS": "1"}
    words = ["--server", server.url, "--checkpoint", str(folder / f"{run_id}.npz"), *options]
    with (folder / f"{run_id}.log").open("a") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", "examples.async_grpo", *words],
            env=environ, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGCONT)  # a frozen worker cannot exit
        program.send_signal(signal.SIGINT)
        try:
            program.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(program.pid, signal.SIGKILL)
            program.wait()


class _Client:
    """Queries the server about one run."""

    def __init__(self, server: ServerProcess, run_id: str) -> None:
        self._url = server.url
        self._run_id = run_id

    def step_starts(self) -> dict[int, float]:
        """Return when each step began, including the running one."""
        return {one["step"]: one["start_ns"] / 1e9 for one in self._ask("/api/v1/steps")}

    def loud(self) -> list[Mapping[str, Any]]:
        """Return the findings above `info` that no other finding explains."""
        return [one for one in self._ask("/api/v1/findings") if one["severity"] != "info"]

    def _ask(self, path: str) -> list[Mapping[str, Any]]:
        with contextlib.closing(connect(self._url)) as connection:
            connection.request("GET", f"{path}?run={self._run_id}")
            answer = connection.getresponse()
            body = answer.read()
        # The run does not exist before its first batch has arrived.
        return list(json.loads(body)) if answer.status == 200 else []


def plant(server: ServerProcess, folder: Path, expected: Expected) -> Named:
    """Inject a fault, and wait until it is reported."""
    run_id = f"fault-{expected.fault}"
    client = _Client(server, run_id)
    with training(server, run_id, folder, "--fault", expected.fault, "--fault-at", str(FAULT_AT)):
        began_s = _wait_for_step(client, FAULT_AT)
        while began_s and time.time() - began_s < _AFTER_S:
            for one in client.loud():
                if one["rule"] in expected.rules:
                    return Named(one, time.time() - began_s, max(client.step_starts()) - FAULT_AT)
            time.sleep(1.0)
    return Named(None)


def _wait_for_step(client: _Client, number: int) -> float:
    """Wait until a step begins; returns its start, or 0 if it never begins."""
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        if (began_s := client.step_starts().get(number)) is not None:
            return began_s
        time.sleep(1.0)
    return 0.0


def follow(server: ServerProcess, folder: Path, number: int, seconds: float) -> list[Mapping[str, Any]]:
    """Train without a fault for a while, one run in two parts; returns the findings above `info`."""
    run_id, options = f"healthy-{number}", HEALTHY[number]
    parts = 2 if "--resume" in options else 1
    for _ in range(parts):
        with training(server, run_id, folder, "--seed", str(number), *options):
            time.sleep(seconds / parts)
    return _Client(server, run_id).loud()


def run(options: Options) -> Iterator[Figure]:
    """Inject the faults, then diagnose healthy runs."""
    verbose = bool(os.environ.get("RL_INSIGHT_BENCHMARK_VERBOSE"))
    chosen = FAULTS[:: len(FAULTS) // 2] if options.quick else FAULTS
    with (
        tempfile.TemporaryDirectory(prefix="rl-insight-diagnosis-") as name,
        running_server() as server,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        folder = Path(name)
        named = list(pool.map(lambda expected: plant(server, folder, expected), chosen))
        alarms: list[list[Mapping[str, Any]]] = []
        if options.minutes:
            numbers = range(len(HEALTHY))
            alarms = list(pool.map(lambda number: follow(server, folder, number, 60 * options.minutes), numbers))
    if verbose:
        for expected, one in zip(chosen, named, strict=True):
            said = "missed" if one.finding is None else f"{one.finding['title']} {one.finding['culprit']}"
            print(f"{expected.fault}: {said}, after {one.seconds:.0f} s and {one.steps} steps", file=sys.stderr)
        for number, findings in enumerate(alarms):
            for finding in findings:
                print(f"healthy {HEALTHY[number]}: {finding['rule']}: {finding['title']}", file=sys.stderr)
    reported = [(expected, one, one.finding) for expected, one in zip(chosen, named, strict=True) if one.finding]
    right = [
        one for expected, one, finding in reported
        if all(finding["culprit"].get(key) == value for key, value in expected.culprit.items())
    ]  # fmt: skip
    in_time = [one for _, one, _ in reported if one.seconds <= IN_TIME_S or one.steps <= IN_TIME_STEPS]
    yield Figure("faults injected into a training run", len(chosen), "")
    yield Figure("recall", len(reported) / len(chosen), "", budget=0.95, at_least=True)
    yield Figure("correct culprit", len(right) / max(1, len(reported)), "", budget=0.95, at_least=True)
    yield Figure("reported within 30 s or 5 steps", len(in_time) / max(1, len(reported)), "", budget=1.0, at_least=True)
    yield Figure("reported after, slowest", max((one.seconds for _, one, _ in reported), default=0.0), "s")
    if options.minutes:
        yield Figure("healthy runs", len(alarms), "")
        yield Figure("false alarms of healthy runs", sum(map(len, alarms)), "", budget=0.0)
