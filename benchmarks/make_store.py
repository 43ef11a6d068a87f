"""Make a run file with many synthetic spans, for measuring the store and the views.

    python -m benchmarks.make_store big.duckdb --spans 10000000

The run looks like a training: one trainer and many rollout workers, steps of ten seconds, states that follow one
another, operations inside them, now and then a long session, some errors, a few spans left open.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rl_insight.schema import NO_STEP, VERSION, Batch, BatchBuilder, Process
from rl_insight.schema.batch import Spans
from rl_insight.store.run_store import RunStore

SECOND = 1_000_000_000
BEGIN_NS = 1_760_000_000 * SECOND
BATCH_SPANS = 10_000
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
    seed: int = 0,
) -> Batch:
    """Return a batch of spans of one process, spread over a stretch of time."""
    rng = np.random.default_rng((seed, process.pid, sequence))
    strings = [*NAMES, *_SEGMENTS, *_STATUSES]
    sessions = len(strings) + 1
    strings += [f"session-{process.pid}-{sequence}-{i}" for i in range(100)]
    attributes = len(strings) + 1
    strings += [
        f'{{"tokens":{i * 7 % 4096},"model":"policy-{sequence % 50}","worker":"{process.pid}"}}' for i in range(500)
    ]
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
        "lane": np.zeros(spans, np.uint32),
        "status": np.where(rng.random(spans) < 0.002, len(NAMES) + 4, len(NAMES) + 3).astype(np.uint32),
        "error": np.zeros(spans, np.uint32),
        "step": (starts - BEGIN_NS) // (10 * SECOND),
        "session_id": (rng.integers(0, 100, spans) + sessions).astype(np.uint32),
        "attributes": (rng.integers(0, 500, spans) + attributes).astype(np.uint32),
    }
    return Batch(
        version=VERSION,
        process=process,
        sequence=sequence,
        sent_ns=int(starts[-1]),
        strings=strings,
        spans=Spans(**{name: column.tobytes() for name, column in columns.items()}),
    )


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
    return builder.build(process, sequence=sequence, sent_ns=start_ns)


def batches(spans: int, processes: int = 64, spans_per_s: int = 5_000) -> Iterator[Batch]:
    """Yield the batches of a run in the order in which they would arrive."""
    workers = [
        Process(
            process_id=f"node{i // 8}-{1000 + i}",
            run_id="synthetic",
            host=f"node{i // 8}",
            pid=1000 + i,
            project="benchmark",
            experiment_name="synthetic",
            role="trainer" if i == 0 else "rollout",
            rank=i,
        )
        for i in range(processes)
    ]
    length_ns = BATCH_SPANS * processes * SECOND // spans_per_s
    made = 0
    sequence = 0
    while made < spans:
        sequence += 1
        for process in workers:
            if made >= spans:
                break
            count = min(BATCH_SPANS, spans - made)
            yield span_batch(
                process, sequence, start_ns=BEGIN_NS + (sequence - 1) * length_ns, length_ns=length_ns, spans=count
            )
            made += count
    yield open_batch(workers[-1], sequence + 1, BEGIN_NS + sequence * length_ns)


def make_store(path: Path, spans: int, *, processes: int = 64) -> dict[str, float]:
    """Write a run file and return what it took: seconds in commits, the longest one, bytes on disk."""
    in_commits = longest = 0.0
    with RunStore(path) as store:
        for batch in batches(spans, processes):
            began = time.perf_counter()
            store.commit([batch], live=False)
            took = time.perf_counter() - began
            in_commits += took
            longest = max(longest, took)
    return {"commit_s": in_commits, "longest_commit_s": longest, "bytes": path.stat().st_size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--spans", type=int, default=10_000_000)
    parser.add_argument("--processes", type=int, default=64)
    arguments = parser.parse_args()
    figures = make_store(arguments.path, arguments.spans, processes=arguments.processes)
    print(f"{arguments.spans / figures['commit_s']:,.0f} spans/s in commits of {BATCH_SPANS:,}")
    print(f"longest commit {figures['longest_commit_s'] * 1000:.0f} ms")
    print(f"{figures['bytes'] / arguments.spans * 1_000_000 / 1e6:.1f} MB per million spans")


if __name__ == "__main__":
    main()
