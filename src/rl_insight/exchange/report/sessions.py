"""The sessions of a report."""

from __future__ import annotations

from rl_insight.exchange.report.model import SessionReport, StepDistribution
from rl_insight.schema.captured_text import CAPTURED_TEXT
from rl_insight.store.queries import Cursor, Scope, Session, Transcript, session_transcript
from rl_insight.store.queries.base import conditions, structs
from rl_insight.store.queries.scope import STEP_FRAGMENTS, steps_in
from rl_insight.store.session_rows import session_of_row

MAX_SESSIONS = 20_000
SLOWEST = 200
MAX_TRANSCRIPTS = 500
_MAX_CHARACTERS = 20_000_000
_MAX_STEPS = 1_000
_COLUMNS = ", ".join(Session.__struct_fields__)
_COUNT = "SELECT count(*) FROM sessions WHERE {where}"
_SESSIONS = f"""
    SELECT {_COLUMNS} FROM (
        SELECT {_COLUMNS}, row_number() OVER (ORDER BY submit_ts, session_id) AS place,
            row_number() OVER (ORDER BY total_s DESC NULLS LAST, session_id) AS slowness
        FROM sessions WHERE {{where}}
    ) WHERE place % $every = 0 OR slowness <= $slowest ORDER BY place
"""  # noqa: S608  (constants)
# A session without timestamps still has its phases.
_DURATION = "coalesce(total_s, execution_s, generate_s)"
_BY_STEP = f"""
    SELECT step, count(*), quantile_cont({_DURATION}, 0.5), quantile_cont({_DURATION}, 0.95), max({_DURATION}),
        count(*) FILTER (status IN ('failed', 'lost', 'dropped', 'cancelled'))
    FROM sessions WHERE step IS NOT NULL AND {_DURATION} IS NOT NULL
    GROUP BY step ORDER BY step DESC LIMIT $limit
"""  # noqa: S608  (constants)
_WITH_TEXTS = f"""
    SELECT DISTINCT session_id FROM span_data
    WHERE session_id IS NOT NULL AND regexp_matches(attributes, '"({"|".join(sorted(CAPTURED_TEXT))})')
"""  # noqa: S608  (constants)


def session_report(cursor: Cursor, scope: Scope, most: int = MAX_SESSIONS, slowest: int = SLOWEST) -> SessionReport:
    """Return the sessions of a scope; if there are too many, an even sample and the slowest."""
    where, given = conditions(STEP_FRAGMENTS, steps_in(cursor, scope))
    ((total,),) = cursor.execute(_COUNT.format(where=where), given).fetchall()
    sampling = {"every": max(1, -(-total // most)), "slowest": slowest}
    rows = cursor.execute(_SESSIONS.format(where=where), given | sampling).fetchall()
    by_step = structs(cursor, StepDistribution, _BY_STEP, {"limit": _MAX_STEPS})[::-1]
    return SessionReport(total=total, sessions=[session_of_row(row) for row in rows], steps=by_step)


def session_transcripts(cursor: Cursor, sessions: list[Session]) -> dict[str, Transcript]:
    """Return the transcripts of sessions whose text was captured, by id; if there are too many, the newest."""
    with_texts = {session_id for (session_id,) in cursor.execute(_WITH_TEXTS).fetchall()}
    found: dict[str, Transcript] = {}
    characters = 0
    for session in reversed(sessions):
        if session.session_id not in with_texts:
            continue
        one = session_transcript(cursor, session.session_id)
        if one is None or not one.is_captured:
            continue
        characters += one.characters
        if len(found) >= MAX_TRANSCRIPTS or characters > _MAX_CHARACTERS:
            break
        found[session.session_id] = one
    return found
