"""The session of a span from another program: its parent's session, else the only session of its trace."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rl_insight.store.queries.base import Cursor

_WINDOW_NS = 24 * 3600 * 1_000_000_000
"""How long before the span its session may have started: DuckDB skips older parts of a file."""
_TRACES = """
    SELECT span_id, trace_high, trace_low, session_id, step FROM {table}
    WHERE start_ns >= $since_ns AND session_id IS NOT NULL AND trace_low IN (SELECT unnest($traces::UBIGINT[]))
"""
_SQL = f"{_TRACES.format(table='span_data')} UNION ALL {_TRACES.format(table='open_span_data')}"


class ForeignSpan(msgspec.Struct, frozen=True):
    """A span that names no session."""

    trace: tuple[int, int]
    parent_id: int
    start_ns: int


class FoundSession(msgspec.Struct, frozen=True):
    """The session of a span."""

    session_id: str
    step: int | None


def trace_sessions(cursor: Cursor, spans: Iterable[ForeignSpan]) -> dict[ForeignSpan, FoundSession]:
    """Return the sessions of spans; spans without a known session are left out."""
    asked = list(spans)
    if not asked:
        return {}
    since_ns = min(span.start_ns for span in asked) - _WINDOW_NS
    rows = cursor.execute(_SQL, {"traces": [span.trace[1] for span in asked], "since_ns": since_ns}).fetchall()
    of_span: dict[tuple[int, int, int], FoundSession] = {}
    of_trace: dict[tuple[int, int], dict[str, FoundSession]] = {}
    for span_id, high, low, session_id, step in rows:
        found = FoundSession(session_id, step)
        of_span[high, low, span_id] = found
        of_trace.setdefault((high, low), {}).setdefault(session_id, found)
    sessions = {}
    for span in asked:
        known = of_span.get((*span.trace, span.parent_id))
        alone = of_trace.get(span.trace, {})
        if known is None and len(alone) == 1:
            (known,) = alone.values()
        if known is not None:
            sessions[span] = known
    return sessions
