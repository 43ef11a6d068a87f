from __future__ import annotations

from rl_insight.collector.sinks.memory import MemorySink
from rl_insight.schema.records import SampleRecord, SpanRecord


def test_the_last_batches_are_kept_and_read_as_records(fake_process):
    sink = MemorySink(max_batches=2)
    process = fake_process()
    for number in range(3):
        sink.write(process.gauge("x", float(number)).span(span_id=number + 1).batch())
    assert [batch.sequence for batch in sink.batches] == [2, 3]
    assert [record.value for record in sink.records() if isinstance(record, SampleRecord)] == [1.0, 2.0]
    assert len([record for record in sink.records() if isinstance(record, SpanRecord)]) == 2
    assert sink.get_status() == {"batches": 2}
