"""The duration of a query for GPU utilization by state over a long run."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness import Figure, Options, say
from rl_insight.schema import NO_STEP, Batch, BatchBuilder, Process
from rl_insight.schema.tables import Samples
from rl_insight.store import RunStore
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.hardware import GPU_METRICS, GpuScope, gpu_totals

NAME = "by_state"

_SECOND = 1_000_000_000
_HOUR_NS = 3600 * _SECOND
_BEGIN_NS = 1_767_225_600 * _SECOND
_NODES, _GPUS = 8, 8
_EVERY_NS = 5 * _SECOND
_STEP_NS = 86 * _SECOND
_STATES = ("generate", "wait", "reward", "train", "weight_sync")


def run(options: Options) -> Iterator[Figure]:
    """Query the entire run, as the page does initially, and its last hour."""
    hours = 2 if options.quick else 48
    end_ns = _BEGIN_NS + hours * _HOUR_NS
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gpus.duckdb"
        say(f"by_state: {_make_store(path, hours):,} samples of {_NODES * _GPUS} GPUs in {hours} hours")
        with RunStore(path) as store, store.reader() as cursor:
            for name, length_ns in ((f"{hours} hours", hours * _HOUR_NS), ("an hour", _HOUR_NS)):
                took = min(_seconds(cursor, end_ns - length_ns, end_ns) for _ in range(3))
                yield Figure(f"GPUs by state over {name}", took * 1000, "ms")


def _seconds(cursor: Cursor, start_ns: int, end_ns: int) -> float:
    began = time.perf_counter()
    totals = gpu_totals(cursor, GpuScope(start_ns=start_ns, end_ns=end_ns))
    took = time.perf_counter() - began
    if {state.gpus for state in totals.states} != {_NODES * _GPUS}:
        raise RuntimeError(f"not all GPUs were counted, so the figure is meaningless: {totals.states}")
    return took


def _make_store(path: Path, hours: int) -> int:
    """Write a run whose GPUs are sampled every 5 s while they generate, wait and train; returns the sample count."""
    samples = 0
    workers = [
        Process(process_id=f"node{node}-1", run_id="gpus", host=f"node{node}", pid=node + 1, role="worker", rank=node)
        for node in range(_NODES)
    ]
    with RunStore(path, create=True) as store:
        for hour in range(hours):
            batches = [_hour(worker, hour) for worker in workers]
            samples += sum(len(batch.samples) for batch in batches)
            store.commit(batches)
    return samples


def _hour(worker: Process, hour: int) -> Batch:
    """Return one node's records for one hour."""
    rng = np.random.default_rng((worker.pid, hour))
    start_ns = _BEGIN_NS + hour * _HOUR_NS
    builder = BatchBuilder()
    for metric in GPU_METRICS:
        for gpu in range(_GPUS):
            builder.add_series(metric, "gauge", "", f'{{"gpu":"{gpu}"}}')
    series = len(GPU_METRICS) * _GPUS
    for step in range(hour * _HOUR_NS // _STEP_NS, (hour + 1) * _HOUR_NS // _STEP_NS):
        for number, state in enumerate(_STATES):
            span_id = (worker.pid << 40) + step * len(_STATES) + number + 1
            builder.add_span(
                span_id=span_id,
                trace=(worker.pid, step + 1),
                name=state,
                start_ns=_BEGIN_NS + step * _STEP_NS + number * _STEP_NS // len(_STATES),
                duration_ns=_STEP_NS // len(_STATES),
                segment="state_interval",
                step=step,
            )
    batch = builder.build(worker, sequence=hour + 1, sent_ns=0)
    times = np.repeat(np.arange(start_ns, start_ns + _HOUR_NS, _EVERY_NS), series)
    columns = {
        "series": np.tile(np.arange(series, dtype="<u4"), len(times) // series),
        "time_ns": times,
        "value": rng.random(len(times)),
        "step": np.full(len(times), NO_STEP),
    }
    return msgspec.structs.replace(
        batch, samples=Samples(**{name: column.tobytes() for name, column in columns.items()})
    )
