"""The summary of a run: time range, counts, processes and their health, losses."""

from __future__ import annotations

from typing import Any

import msgspec

from rl_insight.intake import Ledger, Liveness, liveness
from rl_insight.schema.records import read_object
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.queries.base import Cursor, Parameters, structs
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.steps import step_range
from rl_insight.store.tables import IS_SHOWN_LANE, LONG_SPAN_NS, TIMES


class RunSummary(msgspec.Struct, frozen=True):
    """A run at a glance; times are aligned nanoseconds."""

    run_id: str
    project: str
    experiment_name: str
    start_ns: int | None
    end_ns: int | None
    """The latest recorded time."""
    first_step: int | None
    last_step: int | None
    processes: int
    lanes: int
    spans: int
    open_spans: int
    events: int
    logs: int
    series: int
    samples: int
    histograms: int
    sessions: int
    findings: int
    lost: int


class ProcessHealth(msgspec.Struct, frozen=True):
    """A process and its health."""

    process_id: str
    host: str
    pid: int
    role: str
    rank: int | None
    labels: dict[str, Any]
    started_ns: int
    first_seen_ns: int
    last_seen_ns: int
    """By the server's clock."""
    silent_s: float
    heartbeat_s: float
    state: Liveness
    """`live`, `silent` (several of its heartbeats are missing) or `ended` (clean shutdown)."""
    clock_offset_ns: int
    batches: int
    missing_batches: int
    """Gaps in its sequence numbers: in flight or lost; always 0 for senders without sequence numbers, such as OTLP."""
    open_spans: int
    lost: int


class LossCount(msgspec.Struct, frozen=True):
    """The losses of a process for one reason."""

    process_id: str
    role: str
    rank: int | None
    kind: str
    reason: str
    count: int


_HIDDEN_LANES = f"SELECT lane_id FROM lanes WHERE NOT ({IS_SHOWN_LANE})"  # noqa: S608  (constants)
_SUMMARY = f"""
    SELECT
        coalesce((SELECT any_value(run_id) FROM processes), ''),
        coalesce((SELECT any_value(nullif(project, '')) FROM processes), ''),
        coalesce((SELECT any_value(nullif(experiment_name, '')) FROM processes), ''),
        NULL, NULL, NULL, NULL,
        (SELECT count(*) FROM processes), (SELECT count(*) FROM lanes WHERE {IS_SHOWN_LANE}),
        (SELECT count(*) FROM span_data), (SELECT count(*) FROM open_span_data),
        (SELECT count(*) FROM event_data) - (SELECT count(*) FROM event_data WHERE lane_id IN ({_HIDDEN_LANES})),
        (SELECT count(*) FROM log_data),
        (SELECT count(*) FROM series), (SELECT count(*) FROM sample_data), (SELECT count(*) FROM histogram_data),
        (SELECT count(*) FROM sessions), (SELECT count(*) FROM findings),
        (SELECT least(coalesce(sum(count), 0), 9223372036854775807)::BIGINT FROM losses)
"""  # noqa: S608  (constants)

_LENGTHS: dict[str, tuple[str, int | None]] = {
    "span_data": ("coalesce(duration_ns, 0)", LONG_SPAN_NS),
    "long_spans": ("duration_ns", None),
    "open_span_data": ("0", None),
}
"""The duration of a table's rows, and its maximum; by default they are instants.

Spans that last longer are in `long_spans`. Tables without a maximum are small and read completely."""
_SHOWN = {"event_data": f" AND lane_id NOT IN ({_HIDDEN_LANES})"}
"""A condition on the rows that count, by table."""
_RANGE = "SELECT min({time}), max({time}) FROM {table}"
_FIRST = "SELECT min({time} + clock_offset_ns) FROM {table} {clock} WHERE {time} <= $until{shown}"
_LAST = "SELECT max({time} + {length} + clock_offset_ns) FROM {table} {clock} WHERE {time} >= $since{shown}"

_PROCESSES = """
    WITH open_counts AS (
        SELECT process, count(*) AS spans FROM open_span_data JOIN lanes USING (lane_id) GROUP BY process
    ),
    lost AS (
        SELECT process, least(sum(count), 9223372036854775807)::BIGINT AS count FROM losses GROUP BY process
    )
    SELECT process_id, host, pid, role, rank, labels, started_ns, first_seen_ns, last_seen_ns, heartbeat_s, final,
        clock_offset_ns, low_water, above, coalesce(open_counts.spans, 0), coalesce(lost.count, 0)
    FROM processes JOIN ledger USING (process) LEFT JOIN open_counts USING (process) LEFT JOIN lost USING (process)
    ORDER BY role, rank NULLS LAST, process_id
"""

_LOSSES = """
    SELECT process_id, role, rank, kind, reason, count FROM losses JOIN processes USING (process)
    ORDER BY count DESC, process_id
"""


def summary(cursor: Cursor) -> RunSummary:
    """Return the summary of a run: its time range, steps, and record counts."""
    (found,) = structs(cursor, RunSummary, _SUMMARY)
    start_ns, end_ns = time_range(cursor)
    first_step, last_step = step_range(cursor)
    return msgspec.structs.replace(found, start_ns=start_ns, end_ns=end_ns, first_step=first_step, last_step=last_step)


def time_range(cursor: Cursor) -> tuple[int | None, int | None]:
    """Return when the first record of a run started and the last one ended; aligned nanoseconds.

    DuckDB knows the range of a column without reading it. Only the rows at its ends, those that may
    be first or last by any of the clocks, are read and aligned, so the cost does not depend on the length of the run.
    """
    least, most = clock_offsets(cursor)
    starts, ends = [], []
    for table, (time, clock) in TIMES.items():
        length, longest_ns = _LENGTHS.get(table, ("0", 0))
        names = {"table": table, "time": time, "length": length, "clock": clock, "shown": _SHOWN.get(table, "")}
        ((first, last),) = cursor.execute(_RANGE.format(**names)).fetchall()
        if first is None:
            continue
        until, since = (
            (LAST_TIME_NS, -LAST_TIME_NS)
            if longest_ns is None
            else (first + most - least, last - most + least - longest_ns)
        )
        starts += _first_of(cursor, _FIRST.format(**names), {"until": until}, {"until": LAST_TIME_NS})
        ends += _first_of(cursor, _LAST.format(**names), {"since": since}, {"since": -LAST_TIME_NS})
    return min(starts, default=None), max(ends, default=None)


def _first_of(cursor: Cursor, sql: str, *bounds: Parameters) -> list[int]:
    """Return a time, with the first of the bounds that finds any; the rows at the end may be all left out."""
    found = (cursor.execute(sql, given).fetchall()[0][0] for given in bounds)
    return next(([time_ns] for time_ns in found if time_ns is not None), [])


def processes(cursor: Cursor, now_ns: int) -> list[ProcessHealth]:
    """Return every process with its health at a time of the server's clock."""
    rows = cursor.execute(_PROCESSES).fetchall()
    found = []
    for *place, labels, started, first, last, heartbeat_s, final, offset, low, above, running, lost in rows:
        ledger = Ledger(low, above)
        state = liveness(final=final, last_seen_ns=last, heartbeat_s=heartbeat_s, now_ns=now_ns)
        seen = started, first, last, max(0, now_ns - last) / 1e9, heartbeat_s, state, offset
        kept = ledger.batches, ledger.missing, running, lost
        known: tuple[Any, ...] = (*place, read_object(labels), *seen, *kept)
        found.append(ProcessHealth(*known))
    return found


def losses(cursor: Cursor) -> list[LossCount]:
    """Return losses by process, kind and reason, the largest first."""
    return structs(cursor, LossCount, _LOSSES)
