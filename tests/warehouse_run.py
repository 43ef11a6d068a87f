"""A small run with rows in all tables that the queries of docs/warehouse.md read."""

from __future__ import annotations

import json

from rl_insight.schema import BatchBuilder, Process

HOUR = 3_600_000_000_000


def warehouse_batch(rank):
    """Return the records of a rank: two spans per step, one failed; rank 1 takes twice as long as rank 0."""
    builder = BatchBuilder()
    for step in range(3):
        now = HOUR + step * 1_000_000_000
        for number, status in ((0, "ok"), (1, "error")):
            builder.add_span(
                span_id=step * 10 + number + 1, trace=(rank, step), name="generate", start_ns=now, step=step,
                duration_ns=(rank + 1) * 1000, segment="state_interval", status=status, lane=f"lane{rank}",
                error="ValueError" if number else None,
            )  # fmt: skip
        series = builder.add_series("reward", "gauge", "", "{}")
        builder.add_sample(series, time_ns=now, value=step / 2, step=step)
    builder.add_log(time_ns=HOUR, level=40, message="boom")
    record = json.dumps(
        {"session_id": f"s{rank}", "reward": 1.0, "submit_ts": 3600.5, "enqueue_ts": 3601.0, "wait_return_ts": 3602.5}
    )
    builder.add_session(session_id=f"s{rank}", status="accepted", time_ns=HOUR, record=record)
    process = Process(process_id=f"p{rank}", run_id="r", host=f"h{rank}", pid=1, role="actor", rank=rank)
    return builder.build(process, sequence=1, sent_ns=HOUR)
