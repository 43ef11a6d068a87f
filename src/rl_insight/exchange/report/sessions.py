"""The sessions of a report."""

from __future__ import annotations

from rl_insight.exchange.report.model import SessionReport
from rl_insight.schema.captured_text import CAPTURED_TEXT
from rl_insight.store.queries import (
    Cursor,
    Scope,
    SessionConditions,
    StoredSession,
    Transcript,
    session_durations,
    session_steps,
    session_transcript,
)
from rl_insight.store.queries.scope import steps_in
from rl_insight.store.queries.sessions import matching_sessions
from rl_insight.store.queries.steps import counted_step, counted_windows
from rl_insight.store.session_rows import session_of_row
from rl_insight.store.tables import SECOND

MAX_SESSIONS = 20_000
SLOWEST = 200
MAX_TRANSCRIPTS = 500
_MAX_CHARACTERS = 20_000_000
_COLUMNS = ", ".join(StoredSession.__struct_fields__)
_COUNT = "SELECT count(*) FROM sessions WHERE {where}"
_SESSIONS = f"""
    SELECT {_COLUMNS} FROM (
        SELECT {_COLUMNS}, row_number() OVER (ORDER BY submit_ts, session_id) AS place,
            row_number() OVER (ORDER BY total_s DESC NULLS LAST, session_id) AS slowness
        FROM sessions WHERE {{where}}
    ) WHERE place % $every = 0 OR slowness <= $slowest ORDER BY place
"""  # noqa: S608  (constants)
_WITH_TEXTS = f"""
    SELECT DISTINCT session_id FROM span_data
    WHERE session_id IS NOT NULL AND regexp_matches(attributes, '"({"|".join(sorted(CAPTURED_TEXT))})')
"""  # noqa: S608  (constants)


def session_report(cursor: Cursor, scope: Scope, most: int = MAX_SESSIONS, slowest: int = SLOWEST) -> SessionReport:
    """Return the sessions of a scope; if there are too many, an even sample and the slowest."""
    chosen = SessionConditions(**steps_in(cursor, scope))
    where, given = matching_sessions(cursor, chosen)
    ((total,),) = cursor.execute(_COUNT.format(where=where), given).fetchall()
    sampling = {"every": max(1, -(-total // most)), "slowest": slowest}
    rows = cursor.execute(_SESSIONS.format(where=where), given | sampling).fetchall()
    sessions = [session_of_row(row) for row in rows]
    return SessionReport(
        total=total,
        sessions=sessions,
        durations=session_durations(cursor, chosen),
        steps=session_steps(cursor, chosen),
        counted_steps=_counted_steps(cursor, sessions),
    )


def _counted_steps(cursor: Cursor, sessions: list[StoredSession]) -> dict[str, int]:
    windows = counted_windows(cursor)
    found = {}
    for one in sessions:
        if one.step is None and one.submit_ts is not None:
            step = counted_step(windows, round(one.submit_ts * SECOND))
            if step is not None:
                found[one.session_id] = step
    return found


def session_transcripts(cursor: Cursor, sessions: list[StoredSession]) -> dict[str, Transcript]:
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
