"""The cost of a live evaluation at 1,000 processes and 10 million spans.

    python -m benchmarks diagnosis_live

Diagnosis catches up with a run that has a long history, then follows it: for every five seconds of recorded time, the
records of 1,000 processes are committed and the run is evaluated. Only the evaluations are timed.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.diagnosis_script import BEGIN_S, SECOND, Actor, Script
from benchmarks.harness import Figure, Options
from benchmarks.make_store import span_batch
from rl_insight.diagnosis.run import LiveDiagnosis
from rl_insight.store.run_store import RunStore

NAME = "diagnosis_live"
PROCESSES = 1_000
TICK_S = 5.0
STEP_S = 10.0
HISTORY_S = 500
"""How much recorded time one batch of the history covers."""
WARM_UP_TICKS = 4
MEASURED_TICKS = 16


def _record(script: Script, actors: list[Actor], start_s: float, spans: int) -> None:
    """Record five seconds of work of every process."""
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


def _write_history(store: RunStore, actors: list[Actor], batches: int, spans: int) -> float:
    """Write the history of every process; returns its length in seconds of recorded time."""
    for sequence in range(1, batches + 1):
        start_ns = int((BEGIN_S + (sequence - 1) * HISTORY_S) * SECOND)
        for first in range(0, len(actors), 50):
            made = []
            for actor in actors[first : first + 50]:
                actor.sequence = sequence
                made.append(
                    span_batch(actor.process, sequence, start_ns=start_ns, length_ns=HISTORY_S * SECOND, spans=spans)
                )
            store.commit(made, received_ns=[start_ns + HISTORY_S * SECOND] * len(made))
    return float(batches * HISTORY_S)


def _catch_up(store: RunStore, live: LiveDiagnosis, now_s: float) -> Iterator[tuple[float, float]]:
    """Evaluate a run until it is up to date; yields the wall and CPU seconds of each call."""
    is_done = False
    while not is_done:
        with store.reader() as cursor:
            began, busy = time.perf_counter(), time.process_time()
            is_done = live.evaluate(cursor, int((BEGIN_S + now_s + 2.0) * SECOND))
            yield time.perf_counter() - began, time.process_time() - busy


def run(options: Options) -> Iterator[Figure]:
    """Follow a run and time each evaluation."""
    batches, history_spans, spans = (2, 100, 6) if options.quick else (10, 1_000, 10)
    with (
        tempfile.TemporaryDirectory(prefix="rl-insight-diagnosis-") as folder,
        RunStore(Path(folder) / "run.duckdb", min_free_bytes=0, create=True) as store,
    ):
        script = Script(1)
        actors = [
            script.actor("trainer" if number < 16 else "rollout", number, f"node-{number // 8}")
            for number in range(PROCESSES)
        ]
        live = LiveDiagnosis()
        moment_s = _write_history(store, actors, batches, history_spans)
        caught_up_s = sum(wall for wall, _ in _catch_up(store, live, moment_s))
        seconds: list[tuple[float, float]] = []
        for tick in range(WARM_UP_TICKS + MEASURED_TICKS):
            _record(script, actors, moment_s, spans)
            moment_s += TICK_S
            script.write(store, moment_s, goodbye=False)
            taken = list(_catch_up(store, live, moment_s))
            seconds += taken if tick >= WARM_UP_TICKS else []
        rows = store_rows(store)
    walls, busy = sorted(wall for wall, _ in seconds), sorted(cpu for _, cpu in seconds)
    yield Figure("spans in the run", rows, "")
    yield Figure("catching up with the run", caught_up_s, "s")
    yield Figure("evaluation at 1,000 processes, median", walls[len(walls) // 2] * 1e3, "ms", budget=300.0)
    yield Figure("evaluation at 1,000 processes, slowest", walls[-1] * 1e3, "ms")
    # CPU time, so that other work on the machine does not count.
    yield Figure("slowest evaluation, CPU time", busy[-1] * 1e3, "ms", budget=300.0)
    yield Figure("share of a core", 100 * sum(busy) / len(busy) / TICK_S, "%", budget=3.0)


def store_rows(store: RunStore) -> int:
    """Return how many spans a run has."""
    with store.reader() as cursor:
        ((count,),) = cursor.execute("SELECT count(*) FROM span_data").fetchall()
    return int(count)
