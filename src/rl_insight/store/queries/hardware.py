"""GPUs joined with states: what they did while a role was in a state, and the energy of each step.

Between two samples of a GPU a quantity is taken to run in a straight line, so a mean over a state is weighted by time
and energy is the trapezoid of the power. Where two samples are too far apart nothing is known, and nothing is counted.
"""

from __future__ import annotations

import msgspec

from rl_insight.store.queries.base import Cursor, Parameters, conditions
from rl_insight.store.tables import LONG_SPAN_NS

GPU_METRICS = ("gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_power_watts")
MAX_GAP_S = 30.0
"""Two samples of a GPU that are further apart tell nothing about the time between them."""


class StateTotals(msgspec.Struct, frozen=True):
    """What all GPUs of the hosts did while a role was in a state, added up over GPUs and time."""

    role: str
    name: str
    seconds: float
    """Wall time in the state on all hosts together; lanes of one host that overlap count once."""
    gpus: int
    """GPUs that a sample tells something about."""
    busy_gpu_seconds: float
    utilization_gpu_seconds: float
    """GPU time for which the utilisation is known; `memory_` and `power_gpu_seconds` likewise."""
    memory_byte_seconds: float
    memory_gpu_seconds: float
    energy_joules: float
    power_gpu_seconds: float


class StepEnergy(msgspec.Struct, frozen=True):
    """The energy of all GPUs over a step."""

    step: int
    energy_joules: float
    gpu_seconds: float
    """For how long, over all GPUs, the power was known."""


class GpuTotals(msgspec.Struct, frozen=True):
    """The GPUs of a run, by state and by step."""

    states: list[StateTotals]
    """Those with the most time first."""
    steps: list[StepEnergy]
    """In order; those of which nothing is known are left out."""


_OFFSETS = "SELECT coalesce(min(clock_offset_ns), 0), coalesce(max(clock_offset_ns), 0) FROM processes"
_LONG_FROM = """
    SELECT min(start_ns) FROM long_spans JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE start_ns + clock_offset_ns < $end_ns AND start_ns + clock_offset_ns + duration_ns >= $start_ns
"""
_HAS_GPUS = "SELECT count(*) FROM series WHERE list_contains($metrics, name)"

# What DuckDB can look up in the order of the file: recorded times, not aligned ones.
_SPAN_FRAGMENTS = {"spans_from": "start_ns >= $spans_from", "until": "start_ns < $until"}
_STEP_FRAGMENTS = {"first_step": "step >= $first_step", "last_step": "step <= $last_step"}
_SAMPLE_FRAGMENTS = {"samples_from": "time_ns >= $samples_from", "samples_until": "time_ns < $samples_until"}

_STATES = """
    WITH found AS (
        SELECT role, host, name, step, start_ns + clock_offset_ns AS start_ns,
            start_ns + clock_offset_ns + duration_ns AS end_ns
        FROM span_data JOIN names USING (name_id) JOIN lanes USING (lane_id) JOIN processes USING (process)
        WHERE segment IN ('state_interval', 'state_nested', 'phase') AND {spans} AND {steps}
        UNION ALL
        SELECT role, host, name, step, start_ns + clock_offset_ns, last_sent_ns + clock_offset_ns
        FROM open_span_data JOIN names USING (name_id) JOIN lanes USING (lane_id) JOIN processes USING (process)
        WHERE segment IN ('state_interval', 'state_nested', 'phase') AND {steps}
    ),
    clipped AS (
        SELECT role, host, name, step, greatest(start_ns, $start_ns) AS start_ns, least(end_ns, $end_ns) AS end_ns
        FROM found WHERE greatest(start_ns, $start_ns) < least(end_ns, $end_ns)
    ),
    kinds AS (
        SELECT row_number() OVER () AS kind, role, name, step FROM (
            SELECT DISTINCT role, name, NULL::BIGINT AS step FROM clipped
            UNION ALL SELECT DISTINCT NULL, NULL, step FROM clipped WHERE step IS NOT NULL
        )
    ),
    grouped AS (
        SELECT kind, host, start_ns, max(end_ns) AS end_ns FROM (
            SELECT kind, host, start_ns, end_ns FROM clipped JOIN kinds USING (role, name)
            UNION ALL SELECT kind, host, start_ns, end_ns FROM clipped JOIN kinds USING (step)
        ) GROUP BY ALL
    ),
    marked AS (
        SELECT *, max(end_ns) OVER (earlier ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached_ns
        FROM grouped WINDOW earlier AS (PARTITION BY kind, host ORDER BY start_ns)
    ),
    numbered AS (
        SELECT *, sum((reached_ns IS NULL OR start_ns > reached_ns)::INTEGER)
            OVER (PARTITION BY kind, host ORDER BY start_ns ROWS UNBOUNDED PRECEDING) AS number
        FROM marked
    ),
    islands AS (
        SELECT kind, host, min(start_ns) AS start_ns, max(end_ns) AS end_ns FROM numbered GROUP BY kind, host, number
    ),
"""
"""Intervals that do not overlap, for each host and kind of state; a kind is a role's state, or a step."""

_HISTORIES = """
    gpu_series AS (
        SELECT series_id, series.name AS metric, clock_offset_ns,
            coalesce(json_extract_string(series.labels, '$.host'), host) AS host,
            coalesce(json_extract_string(series.labels, '$.gpu'), '0') AS gpu
        FROM series JOIN processes USING (process) WHERE list_contains($metrics, series.name)
    ),
    lines AS (
        SELECT row_number() OVER () AS line, metric, host, gpu FROM (SELECT DISTINCT metric, host, gpu FROM gpu_series)
    ),
    line_series AS (SELECT series_id, clock_offset_ns, line FROM gpu_series JOIN lines USING (metric, host, gpu)),
    points AS (
        SELECT line, time_ns + clock_offset_ns AS time_ns, value FROM sample_data JOIN line_series USING (series_id)
        WHERE isfinite(value) AND {samples}
    ),
    paired AS (
        SELECT *, lead(time_ns) OVER later AS next_ns, lead(value) OVER later AS next_value
        FROM points WINDOW later AS (PARTITION BY line ORDER BY time_ns)
    ),
    measured AS (
        SELECT *, CASE WHEN next_ns - time_ns <= $max_gap_ns THEN (next_ns - time_ns) / 1e9 ELSE 0 END AS width_s
        FROM paired
    ),
    histories AS (
        SELECT *, coalesce(sum(width_s) OVER before, 0) AS known_s,
            coalesce(sum(width_s * (value + coalesce(next_value, 0)) / 2) OVER before, 0) AS area
        FROM measured WINDOW before AS (
            PARTITION BY line ORDER BY time_ns ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        )
    ),
"""
"""For each sample of a GPU: the area under the quantity from the first sample to this one, and its known time."""

_TOTALS = """
    edges AS (
        SELECT kind, line, unnest([start_ns, end_ns]) AS moment_ns, unnest([-1, 1]) AS sign
        FROM islands JOIN lines USING (host) JOIN kinds USING (kind) WHERE step IS NULL OR metric = 'gpu_power_watts'
    ),
    reached AS (
        SELECT kind, edges.line, sign, known_s, area, value, next_value, width_s,
            CASE WHEN width_s > 0 THEN (moment_ns - time_ns) / 1e9 ELSE 0 END AS into_s
        FROM edges ASOF JOIN histories ON edges.line = histories.line AND edges.moment_ns >= histories.time_ns
    ),
    of_lines AS (
        SELECT kind, line, sum(sign * (known_s + into_s)) AS known_s,
            sum(sign * (area + into_s * (value + coalesce((next_value - value) * into_s / nullif(width_s, 0), 0) / 2)))
                AS area
        FROM reached GROUP BY kind, line
    ),
    of_kinds AS (
        SELECT kind, count(DISTINCT (host, gpu)) FILTER (known_s > 0) AS gpus,
            sum(area) FILTER (metric = 'gpu_utilization_ratio') AS busy,
            sum(known_s) FILTER (metric = 'gpu_utilization_ratio') AS busy_known_s,
            sum(area) FILTER (metric = 'gpu_memory_used_bytes') AS memory,
            sum(known_s) FILTER (metric = 'gpu_memory_used_bytes') AS memory_known_s,
            sum(area) FILTER (metric = 'gpu_power_watts') AS energy,
            sum(known_s) FILTER (metric = 'gpu_power_watts') AS energy_known_s
        FROM of_lines JOIN lines USING (line) GROUP BY kind
    ),
    times AS (SELECT kind, sum(end_ns - start_ns) / 1e9 AS seconds FROM islands GROUP BY kind)
    SELECT step, role, name, seconds, coalesce(gpus, 0), coalesce(busy, 0), coalesce(busy_known_s, 0),
        coalesce(memory, 0), coalesce(memory_known_s, 0), coalesce(energy, 0), coalesce(energy_known_s, 0)
    FROM kinds JOIN times USING (kind) LEFT JOIN of_kinds USING (kind)
    ORDER BY step, seconds DESC, role, name
"""


def has_gpus(cursor: Cursor) -> bool:
    """Tell whether the run has a sample of a GPU."""
    ((series,),) = cursor.execute(_HAS_GPUS, {"metrics": list(GPU_METRICS)}).fetchall()
    return bool(series)


def gpu_totals(
    cursor: Cursor,
    *,
    start_ns: int | None = None,
    end_ns: int | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
    max_gap_s: float = MAX_GAP_S,
) -> GpuTotals:
    """Join the GPUs of a run with its states.

    A state that is open counts up to its process's last word; of a state that reaches out of the window only what lies
    in it counts.

    Args:
        cursor: of the run.
        start_ns: the window's first moment, in aligned time.
        end_ns: the moment after its last.
        first_step: only states of this step and later ones.
        last_step: only states up to this step.
        max_gap_s: samples of a GPU that are further apart tell nothing about the time between them.
    """
    max_gap_ns = int(max_gap_s * 1e9)
    bounds = _bounds(cursor, start_ns, end_ns, max_gap_ns)
    spans, spans_given = conditions(_SPAN_FRAGMENTS, {name: bounds.get(name) for name in _SPAN_FRAGMENTS})
    steps, steps_given = conditions(_STEP_FRAGMENTS, {"first_step": first_step, "last_step": last_step})
    samples, samples_given = conditions(_SAMPLE_FRAGMENTS, {name: bounds.get(name) for name in _SAMPLE_FRAGMENTS})
    sql = _STATES.format(spans=spans, steps=steps) + _HISTORIES.format(samples=samples) + _TOTALS
    given: Parameters = spans_given | steps_given | samples_given
    given |= {"start_ns": start_ns or 0, "end_ns": 2**62 if end_ns is None else end_ns}
    given |= {"metrics": list(GPU_METRICS), "max_gap_ns": max_gap_ns}
    rows = cursor.execute(sql, given).fetchall()
    return GpuTotals(
        [StateTotals(*row[1:]) for row in rows if row[0] is None],
        [StepEnergy(row[0], row[9], row[10]) for row in rows if row[0] is not None and row[10] > 0],
    )


def _bounds(cursor: Cursor, start_ns: int | None, end_ns: int | None, max_gap_ns: int) -> dict[str, int]:
    """Return the recorded times between which everything lies that tells about a window of aligned time."""
    ((least, most),) = cursor.execute(_OFFSETS).fetchall()
    bounds: dict[str, int] = {}
    if start_ns is not None:
        window = {"start_ns": start_ns, "end_ns": 2**62 if end_ns is None else end_ns}
        ((long_from,),) = cursor.execute(_LONG_FROM, window).fetchall()
        bounds["spans_from"] = start_ns - most - LONG_SPAN_NS
        if long_from is not None:
            bounds["spans_from"] = min(bounds["spans_from"], long_from)
        bounds["samples_from"] = start_ns - most - max_gap_ns
    if end_ns is not None:
        bounds["until"] = end_ns - least
        bounds["samples_until"] = end_ns - least + max_gap_ns + 1
    return bounds
