"""The receiver's view of a process: live, silent or ended, the same everywhere."""

from __future__ import annotations

import doctest
import importlib

import pytest

from rl_insight.collector import Collector
from rl_insight.intake import LIVENESS, Cadence, Intake, liveness, silence_ns
from rl_insight.schema import BatchBuilder, Process, encode
from rl_insight.store import queries
from rl_insight.store.run_store import RunStore

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND


def batch(process_id, sequence=1, *, final=False, heartbeat_s=5.0):
    process = Process(process_id=process_id, run_id="r", host="h", pid=1, heartbeat_s=heartbeat_s)
    return BatchBuilder().build(process, sequence=sequence, sent_ns=START, final=final)


@pytest.mark.parametrize("name", ["admission", "clock", "ledger", "process"])
def test_the_examples_in_the_docstrings_hold(name):
    results = doctest.testmod(importlib.import_module(f"rl_insight.intake.{name}"))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.mark.parametrize("heartbeat_s", [0.01, 5.0])
def test_metrics_and_api_use_the_same_words_for_the_same_processes(tmp_path, heartbeat_s):
    now = START
    collector = Collector(clock=lambda: now, namespace="rl")
    early = [batch("ended", final=True), batch("silent", heartbeat_s=heartbeat_s)]
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        for one in early:
            collector.ingest(encode(one))
        store.commit(early, received_ns=[now, now])
        now += 16 * SECOND
        late = batch("live", heartbeat_s=heartbeat_s)
        collector.ingest(encode(late))
        store.commit([late], received_ns=[now])
        now += SECOND // 5  # more than three heartbeats of 0.01 s, less than three of the shortest that counts
        with store.reader() as cursor:
            stored = {one.process_id: one.state for one in queries.processes(cursor, now)}
    shown = {name: process.state for name, process in collector.status().processes.items()}
    assert shown == stored == {"ended": "ended", "silent": "silent", "live": "live"}
    page, _ = collector.metrics_page()
    for state in LIVENESS:
        assert f'rl_collector_processes{{state="{state}"}} 1' in page.decode()


@pytest.mark.parametrize("heartbeat_s", [1e308, float("inf"), float("nan"), -1.0, 0.0])
def test_absurd_heartbeats_have_a_liveness(heartbeat_s):
    assert liveness(final=False, last_seen_ns=START, heartbeat_s=heartbeat_s, now_ns=START + SECOND // 10) == "live"


def silent_after_s(*messages_s):
    """Return how long after its last message a sender without heartbeats is silent."""
    cadence = Cadence()
    heartbeats = [cadence.hear(time_s) for time_s in messages_s]
    return silence_ns(heartbeats[-1]) / SECOND


MINUTE = 60


@pytest.mark.parametrize(
    ("messages_s", "expected"),
    [
        ([0], 45 * MINUTE),
        ([0, 5, 10], 45 * MINUTE),
        (range(0, 46 * MINUTE, 5), 15 * MINUTE),
        (range(0, 50 * MINUTE, 10 * MINUTE), 45 * MINUTE),
        (range(0, 60 * MINUTE, 10 * MINUTE), 30 * MINUTE),
        (range(0, 180 * MINUTE, 30 * MINUTE), 90 * MINUTE),
        ([0, 600 * MINUTE], 180 * MINUTE),
    ],
    ids=["once", "three spans", "every 5 s", "young", "steps of 10 min", "steps of 30 min", "after a night"],
)
def test_a_sender_without_heartbeats_is_silent_after_three_of_its_longest_pauses(messages_s, expected):
    assert silent_after_s(*messages_s) == expected


def test_a_process_is_complete_when_its_last_batch_and_all_before_it_are_here():
    first, second, last = batch("p", 1), batch("p", 2), batch("p", 3, final=True)
    intake = Intake(first.process, START)
    intake.take(first, START)
    intake.take(last, START)
    assert (intake.liveness(START), intake.is_complete) == ("ended", False)
    intake.take(second, START)
    assert intake.is_complete
