"""How long finished sessions and their parts took: quantiles and distributions of all that match."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from rl_insight.sessions.model import KNOWN_PHASES
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.sessions import SessionConditions, matching_sessions


class DurationBin(msgspec.Struct, frozen=True):
    """How many durations lie in an interval of seconds."""

    from_s: float
    to_s: float
    count: int


class PartDurations(msgspec.Struct, frozen=True):
    """How long one part of the finished sessions took, in seconds."""

    name: str
    """`total`, `queue wait`, `runner wait`, `post wait`, or the name of a phase."""
    is_phase: bool
    count: int
    """Finished sessions that have this part."""
    p50_s: float
    p95_s: float
    p99_s: float
    max_s: float
    bins: list[DurationBin]
    """Of equal width; on a logarithmic scale if the durations span more than two decades. One if all are equal."""


MOST_PHASES: Final = 8
BINS: Final = 32
_BEFORE: Final = {"total": "total_s", "queue wait": "queue_wait_s", "runner wait": "runner_wait_s"}
"""The parts listed before the phases, and their columns."""
_AFTER: Final = {"post wait": "post_wait_s"}
_COLUMNS: Final = (
    *((False, name, column) for name, column in (_BEFORE | _AFTER).items()),
    *((True, name, f"{name}_s") for name in KNOWN_PHASES),
)
_IN_COLUMNS = " UNION ALL ".join(
    f"SELECT {is_phase}, '{name}', {column} FROM finished"  # noqa: S608  (constants)
    for is_phase, name, column in _COLUMNS
)
_PARTS = f"""
    WITH finished AS MATERIALIZED (
        SELECT *, from_json(phase_seconds, '"MAP(VARCHAR, DOUBLE)"') AS others
        FROM sessions WHERE isfinite(total_s) AND {{where}}
    ), parts AS MATERIALIZED (
        SELECT * FROM (
            SELECT true AS is_phase, unnest(map_keys(others)) AS name, unnest(map_values(others)) AS seconds
            FROM finished UNION ALL {_IN_COLUMNS}
        ) WHERE isfinite(seconds)
    ), spreads AS (
        SELECT is_phase, name, count(*) AS finished, quantile_cont(seconds, [0.5, 0.95, 0.99]) AS quantiles,
            min(seconds) AS least, max(seconds) AS most, sum(seconds) AS seconds,
            coalesce(least > 0 AND most / least > 100, false) AS is_logarithmic
        FROM parts GROUP BY ALL
    ), binned AS (
        SELECT is_phase, name, CASE
            WHEN least = most THEN 0
            WHEN is_logarithmic THEN (ln(parts.seconds) - ln(least)) / (ln(most) - ln(least))
            ELSE (parts.seconds - least) / (most - least) END AS place
        FROM parts JOIN spreads USING (is_phase, name)
    ), counted AS (
        SELECT is_phase, name, least(floor(place * {BINS}), {BINS - 1})::INTEGER AS bin, count(*) AS sessions
        FROM binned GROUP BY ALL
    ), counts AS (
        SELECT is_phase, name, map(list(bin), list(sessions)) AS counts FROM counted GROUP BY ALL
    )
    SELECT name, is_phase, finished, quantiles, least, most, is_logarithmic, counts
    FROM spreads JOIN counts USING (is_phase, name) ORDER BY spreads.seconds DESC, name
"""  # noqa: S608  (constants)


def session_durations(cursor: Cursor, chosen: SessionConditions | None = None) -> list[PartDurations]:
    """Return how long the finished sessions that match took: in total, by wait, and by phase (the 8 longest).

    Each part has its quantiles and its distribution, over all sessions that match every given condition.
    """
    where, given = matching_sessions(cursor, chosen or SessionConditions())
    waits: dict[str, PartDurations] = {}
    phases: list[PartDurations] = []
    rows = cursor.execute(_PARTS.format(where=where), given).fetchall()
    for name, is_phase, count, (p50_s, p95_s, p99_s), least, most, is_logarithmic, counts in rows:
        bins = _bins(least, most, is_logarithmic, counts)
        one = PartDurations(name, is_phase, count, p50_s, p95_s, p99_s, most, bins)
        if is_phase:
            phases.append(one)
        else:
            waits[name] = one
    before, after = ([waits[name] for name in names if name in waits] for names in (_BEFORE, _AFTER))
    return [*before, *phases[:MOST_PHASES], *after]


def _bins(least: float, most: float, is_logarithmic: bool, counts: dict[int, int]) -> list[DurationBin]:
    if least == most:
        return [DurationBin(least, most, counts[0])]
    low, high = (math.log(least), math.log(most)) if is_logarithmic else (least, most)
    places = [low + (high - low) * index / BINS for index in range(BINS + 1)]
    edges = list(map(math.exp, places)) if is_logarithmic else places
    return [DurationBin(edges[index], edges[index + 1], counts.get(index, 0)) for index in range(BINS)]
