"""What is needed to join hardware with states: state intervals, and the samples of each GPU."""

from __future__ import annotations

from typing import NamedTuple

from rl_insight.store.queries.base import Cursor, conditions


class StateRow(NamedTuple):
    """A state on a lane, or a phase of a session; times are aligned nanoseconds."""

    lane: str
    role: str
    host: str
    name: str
    start_ns: int
    end_ns: int
    step: int | None


class GpuRow(NamedTuple):
    """One value of one GPU."""

    metric: str
    host: str
    gpu: str
    time_ns: int
    value: float


GPU_METRICS = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts")

_STATE_FRAGMENTS = {
    "from_ns": "start_ns + clock_offset_ns + duration_ns >= $from_ns",
    "until_ns": "start_ns + clock_offset_ns < $until_ns",
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
}
_STATES = """
    SELECT coalesce(lane, process_id), role, host, name, start_ns + clock_offset_ns,
        start_ns + clock_offset_ns + duration_ns, step
    FROM span_data JOIN names USING (name_id) JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE segment IN ('state_interval', 'state_nested', 'phase') AND {where}
    ORDER BY start_ns DESC LIMIT $limit
"""
_SAMPLE_FRAGMENTS = {
    "from_ns": "time_ns + clock_offset_ns >= $from_ns",
    "until_ns": "time_ns + clock_offset_ns < $until_ns",
}
_SAMPLES = """
    WITH gpu_series AS (
        SELECT series_id, series.name AS metric, clock_offset_ns,
            coalesce(json_extract_string(series.labels, '$.host'), host) AS host,
            coalesce(json_extract_string(series.labels, '$.gpu'), '0') AS gpu
        FROM series JOIN processes USING (process) WHERE list_contains($metrics, series.name)
    )
    SELECT metric, host, gpu, time_ns + clock_offset_ns, value FROM sample_data JOIN gpu_series USING (series_id)
    WHERE {where} ORDER BY 4 DESC LIMIT $limit
"""
_MAX_STATES = 200_000
_MAX_SAMPLES = 1_000_000


def states(
    cursor: Cursor,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
) -> list[StateRow]:
    """Return the ended states that touch a window, or of some steps: the latest, as many as are sensible."""
    where, given = conditions(
        _STATE_FRAGMENTS,
        {"from_ns": start_ns, "until_ns": end_ns, "first_step": first_step, "last_step": last_step},
    )
    rows = cursor.execute(_STATES.format(where=where), given | {"limit": _MAX_STATES}).fetchall()
    return [StateRow(*row) for row in rows]


def gpu_samples(cursor: Cursor, *, start_ns: int | None = None, end_ns: int | None = None) -> list[GpuRow]:
    """Return what the GPUs showed in a window: the latest values, as many as are sensible."""
    where, given = conditions(_SAMPLE_FRAGMENTS, {"from_ns": start_ns, "until_ns": end_ns})
    given |= {"limit": _MAX_SAMPLES, "metrics": list(GPU_METRICS)}
    return [GpuRow(*row) for row in cursor.execute(_SAMPLES.format(where=where), given).fetchall()]
