"""Helpers for import, export and report: small samples of every format, and runs in a temporary directory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rl_insight.exchange.importing.destinations import StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunDirectory

BEGIN_S = 1_767_225_600.0
BEGIN_NS = 1_767_225_600_000_000_000


def areal_session(number, rank=0, **fields):
    """One line of AReaL's session tracer, with every field."""
    at = BEGIN_S + number
    return {
        "task_id": number // 2,
        "session_id": number,
        "rank": rank,
        "status": "accepted",
        "submit_ts": at,
        "enqueue_ts": at + 0.25,
        "wait_return_ts": at + 9.0,
        "rollout_stats": {"accepted": 8, "enqueued": 192, "rejected": 0, "running": 56},
        "queue_wait_s": 0.25,
        "runner_wait_s": 0.25,
        "execution_s": 7.5,
        "post_wait_s": 1.0,
        "total_s": 9.0,
        "generate_s": 6.0,
        "reward_calc_s": 0.5,
        "phases": {
            "execution": [{"start_ts": at + 0.5, "end_ts": at + 8.0}],
            "generate": [{"start_ts": at + 1.0, "end_ts": at + 7.0}],
            "reward": [{"start_ts": at + 7.25, "end_ts": at + 7.75}],
        },
    } | fields


def lines(records):
    return b"".join(json.dumps(record).encode() + b"\n" for record in records)


@pytest.fixture(scope="session")
def samples():
    """The helpers that make sample records."""

    class Samples:
        begin_s = BEGIN_S
        begin_ns = BEGIN_NS
        session = staticmethod(areal_session)
        lines = staticmethod(lines)

    return Samples


@pytest.fixture
def data_dir(tmp_path):
    return tmp_path / "data"


@pytest.fixture
def runs(data_dir):
    directory = RunDirectory(data_dir, min_free_bytes=0)
    yield directory
    directory.close()


@pytest.fixture
def new_importer(runs, data_dir):
    def make(**options):
        return Importer(StoreDestination(runs), data_dir=data_dir, **options)

    return make


@pytest.fixture
def import_path(new_importer):
    """Import a path and return the summary."""

    def run(path, **options):
        importer = new_importer(**options)
        importer.add(Path(path))
        return importer.summary()

    return run


@pytest.fixture
def fetch(runs):
    def run(run_id, sql):
        with runs.open(run_id) as store, store.reader() as cursor:
            return cursor.execute(sql).fetchall()

    return run


@pytest.fixture
def recorded(runs):
    """A run with all kinds of records: two processes, nested and far spans, an open one, logs, metrics, sessions."""
    trainer = Process(process_id="t", run_id="recorded", host="n0", pid=10, role="trainer", rank=0, project="p")
    worker = Process(
        process_id="w", run_id="recorded", host="n1", pid=11, role="rollout", rank=3, labels={"gpu": "H200"}
    )
    first, second = BatchBuilder(), BatchBuilder()
    for step in range(3):
        at = BEGIN_NS + step * 10_000_000_000
        base = 100 * (step + 1)
        first.add_span(
            span_id=base, trace=(7, step), name="train_step", start_ns=at, duration_ns=9_000_000_000, step=step,
            segment="state_interval", lane="trainer", attributes='{"loss":0.5}',
        )  # fmt: skip
        first.add_span(
            span_id=base + 1, trace=(7, step), parent_id=base, name="update", start_ns=at + 5_000_000_000,
            duration_ns=2_000_000_000, step=step, lane="trainer", status="error", error="ValueError",
        )  # fmt: skip
        second.add_span(
            span_id=base + 2, trace=(7, step), parent_id=base, name="generate", start_ns=at + 1_000_000_000,
            duration_ns=3_000_000_000, step=step, lane="slot_0", session_id=f"s{step}", segment="phase",
        )  # fmt: skip
        second.add_span(
            span_id=base + 3, trace=(7, step), parent_id=base, name="generate", start_ns=at + 2_000_000_000,
            duration_ns=3_000_000_000, step=step, lane="slot_0", session_id=f"s{step}", segment="phase",
        )  # fmt: skip
        second.add_session(
            session_id=f"s{step}", task_id="gsm8k", status="accepted", time_ns=at + 6_000_000_000,
            record=json.dumps({"session_id": f"s{step}", "submit_ts": at / 1e9, "finalized_ts": at / 1e9 + 6.0,
                               "step": step, "reward": 1.0, "counters": {"turns": 2}}),
        )  # fmt: skip
    second.add_span(
        span_id=999, trace=(7, 9), name="toolcall", start_ns=BEGIN_NS + 25_000_000_000, duration_ns=-1, status="open"
    )
    second.add_event(time_ns=BEGIN_NS + 1, name="weights", lane="slot_0", step=1, attributes='{"version":2}')
    second.add_log(
        time_ns=BEGIN_NS + 2, level=40, message="bad </script> line", logger="app", span_id=102, trace=(7, 0)
    )
    gauge = first.add_series("reward_mean", "gauge", "The reward", '{"task":"gsm8k"}')
    counter = first.add_series("samples", "counter", "Samples", "{}")
    histogram = first.add_series("latency_s", "histogram", "Latency", "{}")
    for step, value in enumerate((0.5, float("nan"), float("inf"))):
        first.add_sample(gauge, time_ns=BEGIN_NS + step * 10_000_000_000, value=value, step=step)
        first.add_sample(counter, time_ns=BEGIN_NS + step * 10_000_000_000, value=10.0 * step, step=step)
    first.add_histogram(
        histogram, time_ns=BEGIN_NS + 5, count=3, total=-1.0, minimum=-2.0, maximum=1.0,
        buckets={32767: 1, 0: 1, -32783: 1}, step=1,
    )  # fmt: skip
    with runs.open("recorded", create=True) as store:
        store.commit([first.build(trainer, sequence=1, sent_ns=0), second.build(worker, sequence=1, sent_ns=0)])
        yield store
