"""What a live evaluation costs at 1,000 processes.

    python -m benchmarks diagnosis_live

A run with a long history is caught up with, then followed: every five seconds of its time, what 1,000 processes have
recorded meanwhile is committed, and the run is evaluated. Only the evaluations are timed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.diagnosis_script import BEGIN_S, SECOND, Actor, Script
from benchmarks.harness import Figure, Options
from rl_insight.diagnosis.run import LiveDiagnosis
from rl_insight.store.run_store import RunStore

NAME = "diagnosis_live"
PROCESSES = 1_000
TICK_S = 5.0
STEP_S = 10.0


def _record(script: Script, actors: list[Actor], start_s: float, spans: int) -> None:
    """Record what every process does in five seconds."""
    step = int(start_s / STEP_S)
    for number, actor in enumerate(actors):
        each = TICK_S / spans
        for place in range(spans):
            name = ("generate", "toolcall", "reward", "wait_weights")[place % 4] if number >= 16 else "update"
            taken = each * script.random.uniform(0.9, 0.99)
            script.span(actor, name, start_s + place * each, taken, step=step)
        if number % 8 == 0:
            for gpu in range(8):
                labels = {"source": "nvml", "host": actor.process.host, "gpu": str(gpu)}
                script.gauge(actor, "gpu_utilization_ratio", start_s, 0.8, step, **labels)


def run(options: Options) -> Iterator[Figure]:
    """Follow a run and time each evaluation."""
    history_ticks, spans = (20, 6) if options.quick else (120, 10)
    with (
        tempfile.TemporaryDirectory(prefix="rl-insight-diagnosis-") as folder,
        RunStore(Path(folder) / "run.duckdb", min_free_bytes=0, create=True) as store,
    ):
        script = Script(1)
        actors = [
            script.actor("trainer" if number < 16 else "rollout", number, f"node-{number // 8}")
            for number in range(PROCESSES)
        ]
        live, moment_s, seconds = LiveDiagnosis(), 0.0, []
        for tick in range(history_ticks + 12):
            _record(script, actors, moment_s, spans)
            moment_s += TICK_S
            script.write(store, moment_s, goodbye=False)
            if tick < history_ticks and tick % 40:
                continue
            is_done = False
            while not is_done:
                with store.reader() as cursor:
                    began, busy = time.perf_counter(), time.thread_time()
                    is_done = live.evaluate(cursor, int((BEGIN_S + moment_s + 2.0) * SECOND))
                    busy = time.thread_time() - busy
                    if tick >= history_ticks:
                        seconds.append((time.perf_counter() - began, busy))
        rows = store_rows(store)
    walls = sorted(wall for wall, _ in seconds)
    yield Figure("spans in the run", rows, "")
    yield Figure("evaluation at 1,000 processes, median", walls[len(walls) // 2] * 1e3, "ms")
    yield Figure("evaluation at 1,000 processes, slowest", walls[-1] * 1e3, "ms", budget=300.0)
    share = sum(busy for _, busy in seconds) / len(seconds) / TICK_S
    yield Figure("share of a core", 100 * share, "%", budget=3.0)


def store_rows(store: RunStore) -> int:
    """Return how many spans a run has."""
    with store.reader() as cursor:
        ((count,),) = cursor.execute("SELECT count(*) FROM span_data").fetchall()
    return int(count)
