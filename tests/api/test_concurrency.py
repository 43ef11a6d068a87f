from __future__ import annotations

import asyncio
import threading

import rl_insight as insight
from rl_insight.schema.records import records

MEMORY = {"server": {"backend": "memory"}}
WORKERS, CALLS = 50, 200


def record_some(monitor, worker):
    for number in range(CALLS):
        monitor.metric_count("calls", worker=worker % 5)
        monitor.metric_histogram("value", number)
        with monitor.trace_span("outer", {"worker": worker}), monitor.trace_state("busy", f"lane {worker}"):
            monitor.trace_event("tick", worker=worker)
        monitor.log("info", "line", worker=worker)


def totals(transport):
    found = [record for batch in transport.batches for record in records(batch)]
    counters = {}
    for record in found:
        if type(record).__name__ == "SampleRecord":
            counters[tuple(record.labels.items())] = max(counters.get(tuple(record.labels.items()), 0), record.value)
    return {
        "calls": sum(counters.values()),
        "values": max(record.count for record in found if type(record).__name__ == "HistogramRecord"),
        "outer": len({record.span_id for record in found if getattr(record, "name", "") == "outer"}),
        "busy": len({record.span_id for record in found if getattr(record, "name", "") == "busy"}),
        "tick": sum(getattr(record, "name", "") == "tick" for record in found),
        "line": sum(getattr(record, "message", "") == "line" for record in found),
    }


EXPECTED = dict.fromkeys(("calls", "values", "outer", "busy", "tick", "line"), WORKERS * CALLS)


def test_fifty_threads_lose_nothing(monitor):
    monitor.init(config=MEMORY)
    transport = monitor._pipeline.transport
    threads = [threading.Thread(target=record_some, args=(monitor, worker)) for worker in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    losses = monitor._pipeline.recorder.losses
    monitor.finish()
    assert losses.snapshot() == []
    assert totals(transport) == EXPECTED


def test_fifty_tasks_lose_nothing_and_keep_their_parents(monitor):
    monitor.init(config=MEMORY)
    transport = monitor._pipeline.transport

    async def work(worker):
        for number in range(CALLS):
            monitor.metric_count("calls", worker=worker % 5)
            monitor.metric_histogram("value", number)
            with monitor.trace_span("outer", {"worker": worker}):
                await asyncio.sleep(0)
                async with monitor.trace_state("busy", f"lane {worker}", worker=worker):
                    monitor.trace_event("tick", worker=worker)
                    await asyncio.sleep(0)
            monitor.log("info", "line", worker=worker)

    async def main():
        await asyncio.gather(*(work(worker) for worker in range(WORKERS)))

    asyncio.run(main())
    monitor.finish()
    assert totals(transport) == EXPECTED
    found = [
        r
        for batch in transport.batches
        for r in records(batch)
        if type(r).__name__ == "SpanRecord" and r.status == "ok"
    ]
    outer = {span.span_id: span.attributes["worker"] for span in found if span.name == "outer"}
    assert all(outer[span.parent_id] == span.attributes["worker"] for span in found if span.name == "busy")


def test_threads_may_start_and_stop_monitoring_while_others_record(monitor):
    stop = threading.Event()
    errors = []

    def record():
        while not stop.is_set():
            try:
                monitor.metric_count("c")
                with monitor.trace_state("s", "shared"), monitor.trace_span("t"):
                    monitor.trace_event("e")
            except BaseException as error:
                errors.append(error)
                return

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(10):
        monitor.init(config=MEMORY)
        monitor.finish()
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_capture_collects_from_all_threads(insight_capture):
    threads = [threading.Thread(target=insight.metric_count, args=("c",)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert insight_capture.value("c") == 20.0
