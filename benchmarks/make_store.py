"""Make a run file with many synthetic spans, for measuring the store and the views.

    python -m benchmarks.make_store big.duckdb --spans 10000000
    python -m benchmarks.make_store wide.duckdb --spans 10000000 --processes 1000 --lanes 5

The run resembles training: one trainer and many rollout workers, steps of ten seconds, consecutive states,
operations inside them, an occasional long session, some errors, a few open spans; plus metrics, distributions, log
lines, events and sessions.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_insight.schema import NO_STEP, VERSION, Batch, BatchBuilder, Process
from rl_insight.schema.histogram import bucket_code
from rl_insight.schema.tables import Spans
from rl_insight.store import tables
from rl_insight.store.run_store import RunStore

SECOND = 1_000_000_000
BEGIN_NS = 1_760_000_000 * SECOND
STEP_NS = 10 * SECOND
BATCH_SPANS = 10_000
RUN_ID = "synthetic"
CACHE_VARIABLE = "RL_INSIGHT_BENCHMARK_DIR"
"""Where generated stores are cached; the temporary directory if it is not set."""


class Size(NamedTuple):
    """The number of processes of a run, and of lanes per process."""

    processes: int
    lanes: int
    """Per process, including its default lane."""
    suffix: str = ""
    """The suffix of its figure names."""


FEW = Size(processes=64, lanes=1)
MANY = Size(processes=1_000, lanes=5, suffix=", 1,000 processes")
ROUND_SPANS = BATCH_SPANS * FEW.processes
"""Spans of all processes together between two batches."""
GAUGES = tuple(f"gauge_{number:02d}" for number in range(12))
COUNTERS = ("samples", "tokens", "errors")
DISTRIBUTIONS = ("latency_ms", "response_tokens")
NAMES = (
    "generate",
    "toolcall",
    "reward",
    "prefill",
    "decode",
    "tokenize",
    "sample",
    "update_actor",
    "update_critic",
    "log_prob",
    "weight_sync",
    "checkpoint",
)
_SEGMENTS = ("duration", "state_interval")
_STATUSES = ("ok", "error")


def span_batch(
    process: Process,
    sequence: int,
    *,
    start_ns: int,
    length_ns: int,
    spans: int = BATCH_SPANS,
    lanes: int = 1,
    seed: int = 0,
) -> Batch:
    """Return a batch of spans of one process, spread over a time range and over its lanes."""
    rng = np.random.default_rng((seed, process.pid, sequence))
    strings = [*NAMES, *_SEGMENTS, *_STATUSES]
    sessions = len(strings) + 1
    strings += [session_id(process, sequence, i) for i in range(100)]
    attributes = len(strings) + 1
    strings += [
        f'{{"tokens":{i * 7 % 4096},"model":"policy-{sequence % 50}","worker":"{process.pid}"}}' for i in range(500)
    ]
    slots = len(strings) + 1
    strings += [f"slot_{number}" for number in range(1, lanes)]
    starts = start_ns + np.sort(rng.integers(0, length_ns, spans))
    durations = np.minimum(rng.lognormal(np.log(3e6), 1.8, spans), 60 * SECOND).astype(np.int64)
    ids = np.arange(spans, dtype=np.uint64) + np.uint64((process.pid << 40) + sequence * spans + 1)
    parents = np.where(np.arange(spans) % 8 == 0, 0, ids - (np.arange(spans) % 8).astype(np.uint64))
    names = rng.integers(0, len(NAMES), spans)
    columns = {
        "span_id": ids,
        "trace_high": np.full(spans, process.pid, np.uint64),
        "trace_low": ids // np.uint64(8),
        "parent_id": parents.astype(np.uint64),
        "name": (names + 1).astype(np.uint32),
        "start_ns": starts,
        "duration_ns": durations,
        "segment": np.where(parents == 0, len(NAMES) + 2, len(NAMES) + 1).astype(np.uint32),
        "lane": _lane_texts(spans, lanes, slots),
        "status": np.where(rng.random(spans) < 0.002, len(NAMES) + 4, len(NAMES) + 3).astype(np.uint32),
        "error": np.zeros(spans, np.uint32),
        "step": (starts - BEGIN_NS) // STEP_NS,
        "session_id": (rng.integers(0, 100, spans) + sessions).astype(np.uint32),
        "attributes": (rng.integers(0, 500, spans) + attributes).astype(np.uint32),
    }
    return Batch(
        version=VERSION,
        process=process,
        sequence=sequence,
        sent_ns=0,
        strings=strings,
        spans=Spans(**{name: column.tobytes() for name, column in columns.items()}),
    )


def _lane_texts(spans: int, lanes: int, first: int) -> NDArray[np.uint32]:
    """Return the string index of each span's lane; 0 is the process's own lane. A parent and its children share one."""
    turn = np.arange(spans) // 8 % lanes
    return np.where(turn == 0, 0, turn - 1 + first).astype(np.uint32)


def open_batch(process: Process, sequence: int, start_ns: int, spans: int = 20) -> Batch:
    """Return a batch of spans that never end."""
    builder = BatchBuilder()
    for i in range(spans):
        span_id = (process.pid << 40) + (1 << 39) + i
        builder.add_span(
            span_id=span_id,
            trace=(process.pid, span_id),
            name=NAMES[i % 3],
            start_ns=start_ns + i * SECOND,
            duration_ns=-1,
            status="open",
            step=None if i % 2 else NO_STEP + 1,
        )
    return builder.build(process, sequence=sequence, sent_ns=0)


def session_id(process: Process, sequence: int, number: int) -> str:
    """Return the id of one of the hundred sessions that the spans of a batch belong to."""
    return f"session-{process.pid}-{sequence}-{number}"


def company_batch(
    process: Process, sequence: int, *, start_ns: int, length_ns: int, spans: int = BATCH_SPANS, every_s: int = 2
) -> Batch:
    """Return a process's other records for the time of a batch: metrics every few seconds, logs, sessions."""
    rng = np.random.default_rng((1, process.pid, sequence))
    builder = BatchBuilder()
    logs, sessions = max(1, spans // 25), max(1, spans // 100)
    times = [start_ns + number * every_s * SECOND for number in range(max(1, length_ns // (every_s * SECOND)))]
    _add_metrics(builder, rng, times, sequence)
    _add_distributions(builder, rng, times[::5], sequence)
    for number, time_ns in enumerate(np.sort(rng.integers(start_ns, start_ns + length_ns, logs)).tolist()):
        where = {"step": (time_ns - BEGIN_NS) // STEP_NS, "session_id": session_id(process, sequence - 1, number % 100)}
        level = 40 if number % 97 == 0 else 20
        message = f"rollout {number} of worker {process.pid} took {number % 37} turns"
        builder.add_log(time_ns=time_ns, level=level, message=message, logger="rollout", **where)
        if number % 2:
            builder.add_event(time_ns=time_ns, name="weights_arrived" if number % 5 else "preempted", **where)
    for number in range(sessions):
        begins = start_ns + number * length_ns // sessions
        _add_session(builder, rng, session_id(process, sequence - 1, number), begins)
    return builder.build(process, sequence=sequence, sent_ns=0)


def _add_metrics(builder: BatchBuilder, rng: np.random.Generator, times: list[int], sequence: int) -> None:
    for name in GAUGES:
        series = builder.add_series(name, "gauge", "", '{"worker":"0"}')
        for time_ns, value in zip(times, rng.random(len(times)).tolist(), strict=True):
            builder.add_sample(series, time_ns=time_ns, value=value, step=(time_ns - BEGIN_NS) // STEP_NS)
    for name in COUNTERS:
        series = builder.add_series(name, "counter", "", "{}")
        for number, time_ns in enumerate(times):
            builder.add_sample(series, time_ns=time_ns, value=(sequence * len(times) + number) * 7.0)


def _add_distributions(builder: BatchBuilder, rng: np.random.Generator, times: list[int], sequence: int) -> None:
    for name in DISTRIBUTIONS:
        series = builder.add_series(name, "histogram", "", "{}")
        for number, time_ns in enumerate(times):
            values = rng.lognormal(3.0, 1.0, 40)
            total = (sequence * len(times) + number + 1) * len(values)
            codes, counts = np.unique([bucket_code(value) for value in values], return_counts=True)
            builder.add_histogram(
                series,
                time_ns=time_ns,
                step=(time_ns - BEGIN_NS) // STEP_NS,
                count=total,
                total=float(values.sum()) * total / len(values),
                minimum=float(values.min()),
                maximum=float(values.max()),
                buckets=dict(zip(codes.tolist(), (counts * (total // len(values))).tolist(), strict=True)),
            )


def _add_session(builder: BatchBuilder, rng: np.random.Generator, name: str, start_ns: int) -> None:
    began = start_ns / 1e9
    took = float(rng.lognormal(1.5, 0.8))
    status = "rejected" if rng.random() < 0.1 else "accepted"
    record = {
        "status": status,
        "submit_ts": began,
        "enqueue_ts": began + 0.05,
        "finalized_ts": began + took,
        "step": (start_ns - BEGIN_NS) // STEP_NS,
        "reward": round(float(rng.random()), 3),
        "tokens": int(rng.integers(10, 4000)),
        "counters": {"turns": int(rng.integers(1, 9))},
    }
    task = f"task-{int(rng.integers(0, 5000))}"
    time_ns = int((began + took) * 1e9)
    builder.add_session(session_id=name, status=status, time_ns=time_ns, record=json.dumps(record), task_id=task)


def batches(spans: int, size: Size = FEW, spans_per_s: int = 5_000, *, spans_only: bool = False) -> Iterator[Batch]:
    """Yield the batches of a run in the order of arrival."""
    workers = [
        Process(
            process_id=f"node{i // 8}-{1000 + i}",
            run_id=RUN_ID,
            host=f"node{i // 8}",
            pid=1000 + i,
            project="benchmark",
            experiment_name="synthetic",
            role="trainer" if i == 0 else "rollout",
            rank=i,
        )
        for i in range(size.processes)
    ]
    each = max(1, min(ROUND_SPANS, spans) // size.processes)
    length_ns = each * size.processes * SECOND // spans_per_s
    every_s = 2 if size.processes <= FEW.processes else 20
    made = 0
    sequence = round_number = 0
    while made < spans:
        sequence, round_number = sequence + 2, round_number + 1
        start_ns = BEGIN_NS + (round_number - 1) * length_ns
        for process in workers:
            if made >= spans:
                break
            count = min(each, spans - made)
            when = {"start_ns": start_ns, "length_ns": length_ns}
            yield span_batch(process, sequence - 1, **when, spans=count, lanes=size.lanes)
            if not spans_only:
                yield company_batch(process, sequence, **when, spans=each, every_s=every_s)
            made += count
    yield open_batch(workers[-1], sequence + 1, BEGIN_NS + round_number * length_ns)


def make_store(path: Path, spans: int, size: Size = FEW, *, spans_only: bool = False) -> dict[str, float]:
    """Write a run file and return its cost: seconds in span commits, the longest one, bytes on disk."""
    in_commits = longest = 0.0
    made = batches(spans, size, spans_only=spans_only)
    together = max(1, size.processes // FEW.processes)
    with RunStore(path, create=True) as store:
        while group := list(itertools.islice(made, together)):
            began = time.perf_counter()
            store.commit(group)
            took = time.perf_counter() - began
            longest = max(longest, took)
            if any(len(batch.spans) for batch in group):
                in_commits += took
    return {"commit_s": in_commits, "longest_commit_s": longest, "bytes": path.stat().st_size}


def cached_data_dir(spans: int, size: Size = FEW) -> Path:
    """Return a data directory whose only run, `RUN_ID`, has this many spans; it is generated once and cached."""
    folder = Path(os.environ.get(CACHE_VARIABLE) or Path(tempfile.gettempdir()) / "rl-insight-benchmarks")
    made_by = Path(__file__).read_bytes() + Path(tables.__file__).read_bytes()
    place = folder / f"spans-{spans}-{size.processes}x{size.lanes}-{hashlib.sha256(made_by).hexdigest()[:12]}"
    if (place / "runs").is_dir():
        return place
    # Under another name until it is complete: an interrupted run leaves nothing that looks finished.
    partial = place.with_name(f"{place.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "runs").mkdir(parents=True)
    make_store(partial / "runs" / f"{RUN_ID}.duckdb", spans, size)
    partial.rename(place)
    return place


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, default=FEW.processes)
    parser.add_argument("--lanes", type=int, default=1, help="lanes per process")
    parser.add_argument("--spans-only", action="store_true", help="without metrics, logs, events and sessions")
    options = parser.parse_args()
    size = Size(options.processes, options.lanes)
    figures = make_store(options.path, options.spans, size, spans_only=options.spans_only)
    print(f"{options.spans / figures['commit_s']:,.0f} spans/s in commits of {ROUND_SPANS // options.processes:,}")
    print(f"longest commit {figures['longest_commit_s'] * 1000:.0f} ms")
    print(f"{figures['bytes'] / options.spans * 1_000_000 / 1e6:.1f} MB per million spans")


if __name__ == "__main__":
    main()
