"""A run of a thousand processes, written in a second: three steps, one slow rank, GPUs, stacks, one silent process."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rl_insight.schema import BatchBuilder, Process
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store import RunDirectory

PROCESSES = 1_000
SLOW_RANK = 777
STUCK_RANK = 5
SILENT_RANK = 500
IDLE_GPU = 250
STEPS = 5
_SECOND = 10**9


def make_crowd(data_dir: Path) -> None:
    """Write the run `crowd-1`, whose processes have all just reported, except for the silent one."""
    begin = time.time_ns() - (STEPS + 1) * 10 * _SECOND
    runs = RunDirectory(data_dir, min_free_bytes=0)
    with runs.open("crowd-1", create=True) as store:
        batches = [_batch(rank, begin) for rank in range(PROCESSES)]
        store.commit(batches)
    runs.close()


def _batch(rank, begin):
    builder = BatchBuilder()
    gpu = builder.add_series(
        "gpu_utilization_ratio", "gauge", "", json.dumps({"host": f"node{rank // 8}", "gpu": str(rank % 8)})
    )
    reward = builder.add_series("critic/rewards/mean", "gauge", "", "{}")
    for step in range(STEPS):
        start = begin + step * 10 * _SECOND
        seconds = 9.0 if rank == SLOW_RANK else 3.0 + rank / PROCESSES
        builder.add_span(
            span_id=step + 1,
            trace=(rank + 1, step + 1),
            name="update_actor",
            start_ns=start,
            duration_ns=int(seconds * _SECOND),
            step=step,
        )
        builder.add_sample(gpu, time_ns=start + _SECOND, value=0.02 if rank == IDLE_GPU else 0.9, step=step)
        if rank == 0:
            builder.add_sample(reward, time_ns=start + 9 * _SECOND, value=step / 10, step=step)
    where = "load (data.py:3)" if rank == STUCK_RANK else "all_reduce (nccl.py:9)"
    attributes = json.dumps({"stacks": [{"name": "MainThread", "frames": [where]}]})
    builder.add_event(time_ns=begin + STEPS * 10 * _SECOND, name=STACKS_EVENT, attributes=attributes)
    process = Process(
        process_id=f"node{rank // 8}-{rank}", run_id="crowd-1", host=f"node{rank // 8}", pid=rank + 1,
        role="trainer", rank=rank, experiment_name="crowd", heartbeat_s=0.1 if rank == SILENT_RANK else 3600.0,
    )  # fmt: skip
    return builder.build(process, sequence=1, sent_ns=begin + STEPS * 10 * _SECOND)
