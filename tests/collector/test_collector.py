from __future__ import annotations

import json

import pytest

from rl_insight.collector import Collector, Published, Receipt
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.errors import SchemaError
from rl_insight.intake import Intake, Ledger
from rl_insight.intake.ledger import MAX_GAPS
from rl_insight.metrics import Distribution
from rl_insight.metrics.by_role import by_role
from rl_insight.schema import OPEN, BatchBuilder, Loss, Process, encode

SECOND = 1_000_000_000


class Clock:
    def __init__(self):
        self.now_ns = 1_700_000_000 * SECOND

    def __call__(self):
        return self.now_ns


@pytest.fixture
def clock():
    return Clock()


def total(collector, name):
    return sum(value for family in collector.series.families() if family.name == name for _, value, _ in family.points)


def test_status_shows_what_each_process_sent(fake_process, clock):
    collector = Collector([MemorySink()], clock=clock)
    process = fake_process("p1", role="rollout", rank=3)
    process.count("steps").observe("h", 1.0).span().event().log().log()
    losses = [Loss("spans", "buffer", 5)]
    collector.ingest(process.payload(sent_ns=clock.now_ns + 2 * SECOND, losses=losses))
    assert collector.wait_idle(10)
    status = collector.get_status()
    assert status["processes"]["p1"] == {
        "process_id": "p1",
        "run_id": "r1",
        "project": "demo",
        "experiment_name": "grpo",
        "host": "node0",
        "pid": 7,
        "role": "rollout",
        "rank": 3,
        "last_seen_ns": clock.now_ns,
        "batches": 1,
        "events": {"spans": 1, "events": 1, "logs": 2, "samples": 1, "histograms": 1},
        "losses": [{"kind": "spans", "reason": "buffer", "count": 5}],
        "clock_offset_ns": -2 * SECOND,
        "state": "live",
    }
    assert status["events"] == status["processes"]["p1"]["events"]
    assert (status["batches"], status["duplicates"], status["series"]) == (1, 0, 2)
    assert status["sinks"]["memory"]["written"] == 1
    json.dumps(status)
    collector.close()


def test_replaying_everything_changes_nothing_but_the_duplicates(fake_process):
    collector = Collector([sink := MemorySink()])
    process = fake_process()
    payloads = [process.count("steps").payload(losses=[Loss("spans", "buffer", 5)]) for _ in range(5)]
    assert [collector.ingest(payload) for payload in payloads] == [Receipt(accepted=1)] * 5
    assert [collector.ingest(payload) for payload in payloads] == [Receipt(duplicates=1)] * 5
    collector.close()
    status = collector.status()
    assert total(collector, "steps") == 5
    assert len(sink.batches) == 5
    assert (status.batches, status.duplicates, status.losses) == (5, 5, [Loss("spans", "buffer", 5)])


def test_losses_of_processes_add_up_and_never_shrink(fake_process):
    collector = Collector()
    first, second = fake_process("a"), fake_process("b")
    early, late = (first.payload(losses=[Loss("spans", "buffer", count)]) for count in (2, 7))
    for payload in (late, early, second.payload(losses=[Loss("spans", "buffer", 1)])):
        collector.ingest(payload)
    assert collector.status().losses == [Loss("spans", "buffer", 8)]


def batch_with(**fields):
    fields = {"sequence": 1, "process_id": "p"} | fields
    process = Process(process_id=fields["process_id"], run_id="r", host="h", pid=1)
    batch = BatchBuilder().build(process, sequence=fields["sequence"], sent_ns=1)
    batch.version = fields.get("version", batch.version)
    return encode(batch)


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"", "schema"),
        (b"\x00\xff nonsense", "schema"),
        (batch_with(version=(99, 0)), "version"),
        (batch_with(sequence=0), "schema"),
        (batch_with(sequence=-5), "schema"),
        (batch_with(process_id=""), "schema"),
    ],
)
def test_bad_payload_is_refused_and_counted(payload, reason):
    collector = Collector()
    with pytest.raises(SchemaError):
        collector.ingest(payload)
    status = collector.status()
    assert status.refused == {reason: 1}
    assert (status.batches, status.processes) == (0, {})


def test_a_receiver_with_a_store_publishes_what_it_committed(fake_process, clock):
    collector = Collector([sink := MemorySink()], clock=clock)
    payload = fake_process("p1").count("steps").payload()
    batch = collector.decode(payload)
    intake = Intake(batch.process, clock.now_ns)
    assert collector.are_published([batch]) == [False]
    assert intake.take(batch, clock.now_ns)
    assert collector.are_published([batch]) == [False]  # taken, and not yet committed
    collector.publish([Published(batch, len(payload), intake, is_new=True)])
    assert collector.are_published([batch]) == [True]
    collector.publish([Published(batch, len(payload), intake, is_new=False)])
    collector.close()
    status = collector.status()
    assert (status.batches, status.duplicates, len(sink.batches)) == (1, 2, 1)
    assert total(collector, "steps") == 1


def test_after_a_restart_a_duplicate_reports_what_the_store_has(fake_process, clock):
    collector = Collector(clock=clock)
    first, second = (collector.decode(payload) for payload in fake_process("p1").payloads(2))
    intake = Intake(first.process, clock.now_ns)
    intake.ledger = Ledger(low_water=2)
    collector.publish([Published(first, 100, intake, is_new=False)])
    assert collector.are_published([first]) == [True]
    assert collector.are_published([second]) == [True]
    assert collector.status().batches == 0


def test_batches_behind_a_closed_gap_are_counted_as_missing(fake_process):
    collector = Collector()
    process = fake_process()
    for payload in process.payloads(2 * MAX_GAPS + 3)[1::2]:
        collector.ingest(payload)
    assert collector.status().missing_batches == 1


def test_state_of_an_ended_process_is_freed_once_all_its_batches_are_here(fake_process):
    collector = Collector()
    process = fake_process()
    first = process.count("steps", 1).payload()
    late = process.count("steps", 2).count("other", 4).payload()
    last = process.count("steps", 3).payload(final=True)
    collector.ingest(first)
    collector.ingest(last)
    assert len(collector.series._processes) == 1
    collector.ingest(late)
    assert len(collector.series._processes) == 0
    assert (total(collector, "steps"), total(collector, "other")) == (6, 4)
    assert collector.status().processes["p1"].state == "ended"


def test_a_process_is_silent_until_it_reports_again(fake_process, clock):
    collector = Collector(clock=clock)
    silent, busy = fake_process("silent", heartbeat_s=5.0), fake_process("busy")
    collector.ingest(silent.payload())
    clock.now_ns += 16 * SECOND
    collector.ingest(busy.payload())
    assert [process.state for process in collector.status().processes.values()] == ["silent", "live"]
    collector.ingest(silent.payload())
    assert collector.status().processes["silent"].state == "live"


def test_list_of_processes_is_bounded_and_totals_are_not_affected(fake_process):
    collector = Collector(max_processes=3)
    for number in range(10):
        collector.ingest(fake_process(f"p{number}").count("steps").payload())
    status = collector.status()
    assert list(status.processes) == ["p7", "p8", "p9"]
    assert (status.processes_seen, status.batches, total(collector, "steps")) == (10, 10, 10)


def test_ended_processes_leave_the_list_before_live_ones(fake_process):
    collector = Collector(max_processes=2)
    collector.ingest(fake_process("old-but-live").payload())
    collector.ingest(fake_process("ended").payload(final=True))
    collector.ingest(fake_process("new").payload())
    assert list(collector.status().processes) == ["old-but-live", "new"]


def test_two_sinks_of_one_name_are_refused():
    with pytest.raises(ValueError, match="two sinks are named 'memory'"):
        Collector([MemorySink(), MemorySink()])


def test_metrics_by_role_are_those_of_the_ranks_put_together(fake_process, clock):
    collector = Collector([DerivedMetrics(clock=clock)], clock=clock)
    for rank in range(6):
        process = fake_process(f"p{rank}", role=("actor", "rollout")[rank % 2], rank=rank, host=f"node{rank // 2}")
        process.count("tokens", 10.0 + rank, rank=str(rank)).gauge("loss", rank, time_ns=5, rank=str(rank), part="a")
        if rank == 0:
            process.gauge("alone", 1.0, time_ns=5, rank="0")
        process.observe("latency", 0.1 * (rank + 1), rank=str(rank))
        for number, name in enumerate(("generate", "wait", "generate")):
            process.span(name, span_id=number, duration_ns=(number + rank) * 10_000_000, segment="state_interval")
        process.span("update", span_id=9, duration_ns=OPEN, segment="state_interval")
        collector.ingest(process.payload(sent_ns=clock()))
    assert collector.wait_idle(10.0)
    assert _points(collector.families(by_role=True)) == _points(by_role(collector.families()))


def _points(families):
    """The values by metric and labels, rounded: sums depend on their order."""
    return {
        (family.name, tuple(sorted(point.labels))): _rounded(point.value)
        for family in families
        for point in family.points
    }


def _rounded(value):
    if not isinstance(value, Distribution):
        return round(value, 9)
    return value.count, round(value.sum, 9), dict(value.buckets), value.minimum, value.maximum
