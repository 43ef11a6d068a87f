"""The guarantees of a collector, whatever its sinks do."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rl_insight.collector import Collector, Sink
from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.errors import SchemaError, UnsupportedVersionError
from rl_insight.schema import VERSION, BatchBuilder, Process, encode


@pytest.fixture
def make_collector():
    made = []

    def make(*sinks):
        made.append(Collector(list(sinks)))
        return made[-1]

    yield make
    for collector in made:
        collector.close()


def payload(sequence=1, process_id="p", version=VERSION):
    builder = BatchBuilder()
    builder.add_sample(builder.add_series("steps", "counter", "", "{}"), time_ns=1, value=sequence)
    builder.add_span(span_id=sequence, trace=(0, 1), name="a", start_ns=1, duration_ns=1)
    process = Process(process_id=process_id, run_id="r", host="h", pid=1)
    batch = builder.build(process, sequence=sequence, sent_ns=1)
    batch.version = version
    return encode(batch)


class BlockedSink(Sink):
    name = "blocked"

    def __init__(self):
        self.gate = threading.Event()

    def write(self, batch):
        self.gate.wait(30)


class BrokenSink(Sink):
    name = "broken"

    def write(self, batch):
        raise OSError("disk full")


def test_batch_is_taken_once(make_collector):
    collector = make_collector(sink := MemorySink())
    assert (collector.ingest(payload()).accepted, collector.ingest(payload()).duplicates) == (1, 1)
    collector.close()
    assert len(sink.batches) == 1


def test_batches_out_of_order_are_all_taken(make_collector):
    collector = make_collector(sink := MemorySink())
    for sequence in (3, 1, 2, 3, 1):
        collector.ingest(payload(sequence))
    collector.close()
    assert [batch.sequence for batch in sink.batches] == [3, 1, 2]


@pytest.mark.parametrize("bad", [b"", b"nonsense", payload()[:-1], payload() + b"x", b"\x80"])
def test_bad_payload_raises_and_changes_nothing(make_collector, bad):
    collector = make_collector(sink := MemorySink())
    with pytest.raises(SchemaError):
        collector.ingest(bad)
    assert collector.ingest(payload()).accepted == 1
    collector.close()
    assert len(sink.batches) == 1


def test_other_major_version_is_refused_and_named(make_collector):
    collector = make_collector()
    with pytest.raises(UnsupportedVersionError, match=r"99.*1"):
        collector.ingest(payload(version=(99, 0)))


def test_newer_minor_version_is_taken(make_collector):
    assert make_collector().ingest(payload(version=(VERSION[0], 99))).accepted == 1


def test_threads_can_ingest_the_same_batches_at_once(make_collector):
    collector = make_collector(sink := MemorySink())
    payloads = [payload(sequence, process) for sequence in range(1, 101) for process in "abc"]
    with ThreadPoolExecutor(6) as pool:
        receipts = list(pool.map(collector.ingest, payloads * 3))
    collector.close()
    assert sum(receipt.accepted for receipt in receipts) == 300
    assert sum(receipt.duplicates for receipt in receipts) == 600
    assert len({(batch.process.process_id, batch.sequence) for batch in sink.batches}) == len(sink.batches) == 300


def test_blocked_and_broken_sinks_disturb_nobody(make_collector):
    blocked, memory = BlockedSink(), MemorySink()
    collector = make_collector(blocked, BrokenSink(), memory)
    written = threading.Event()
    memory_write = memory.write

    def write(batch):
        memory_write(batch)
        if len(memory.batches) == 20:
            written.set()

    memory.write = write
    for sequence in range(1, 21):
        assert collector.ingest(payload(sequence)).accepted == 1
    assert written.wait(10)
    blocked.gate.set()
    collector.close()
    sinks = collector.get_status()["sinks"]
    assert sinks["broken"]["failed"] == 20
    assert "disk full" in sinks["broken"]["last_error"]
    assert sinks["memory"]["written"] == 20


def test_status_is_plain_data(make_collector):
    collector = make_collector(MemorySink())
    json.dumps(collector.get_status())
    collector.ingest(payload())
    status = collector.get_status()
    json.dumps(status)
    assert status["processes"]["p"]["batches"] == 1


def test_close_is_idempotent_and_hands_on_what_is_queued(make_collector):
    collector = make_collector(sink := MemorySink())
    for sequence in range(1, 51):
        collector.ingest(payload(sequence))
    collector.close()
    collector.close()
    assert len(sink.batches) == 50
    json.dumps(collector.get_status())
