"""What a report says about sessions."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.exchange.report.model import Bar, PhaseTotal, Scatter, SessionBars, SessionReport, StepDistribution
from rl_insight.exchange.report.numbers import distribution, outlier_bound, sample_rows
from rl_insight.store import queries
from rl_insight.store.queries import Cursor, Scope
from rl_insight.store.queries.base import conditions
from rl_insight.store.sessions import Session

_GANTT_SESSIONS = 150
_POINTS = 3_000
_MAX_STEPS = 1_000
_SECONDS_SAMPLE = 200_000
_FRAGMENTS = {"first": "step >= $first", "last": "step <= $last"}
# A session without marks still has its phases.
_DURATION = "coalesce(total_s, execution_s, generate_s)"
_START = "coalesce(submit_ts, enqueue_ts)"
_BY_STATUS = "SELECT status, count(*) FROM sessions WHERE {where} GROUP BY status ORDER BY 2 DESC"
_DURATIONS = f"""
    SELECT session_id, status, {_START} AS start_s, {_DURATION} AS duration_s FROM sessions
    WHERE {_DURATION} IS NOT NULL AND {{where}} ORDER BY start_s
"""  # noqa: S608  (constants)
_BY_STEP = f"""
    SELECT step, count(*), quantile_cont({_DURATION}, 0.5), quantile_cont({_DURATION}, 0.95), max({_DURATION}),
        count(*) FILTER (status IN ('failed', 'lost', 'dropped', 'cancelled'))
    FROM sessions WHERE step IS NOT NULL AND {_DURATION} IS NOT NULL
    GROUP BY step ORDER BY step DESC LIMIT $limit
"""  # noqa: S608  (constants)
_WAITS = "SELECT queue_wait_s, runner_wait_s, post_wait_s FROM sessions WHERE {where}"
_PHASES = "SELECT phase_seconds FROM sessions WHERE {where} LIMIT $limit"
_LATEST = "SELECT max(step) FROM sessions"


def step_range(cursor: Cursor, scope: Scope) -> tuple[int | None, int | None]:
    """Return the first and last step of a scope, for sessions; None where there is no bound."""
    if scope.step is not None:
        return scope.step, scope.step
    if scope.last_steps is None:
        return None, None
    ((latest,),) = cursor.execute(_LATEST).fetchall()
    return (None, None) if latest is None else (latest - scope.last_steps + 1, None)


def session_report(cursor: Cursor, scope: Scope) -> SessionReport | None:
    """Return what there is to say about the sessions of a run; None when it has none."""
    first, last = step_range(cursor, scope)
    where, given = conditions(_FRAGMENTS, {"first": first, "last": last})
    by_status = dict(cursor.execute(_BY_STATUS.format(where=where), given).fetchall())
    if not by_status:
        return None
    found = cursor.execute(_DURATIONS.format(where=where), given).fetchnumpy()
    seconds = _floats(found["duration_s"])
    return SessionReport(
        total=sum(by_status.values()),
        by_status=by_status,
        durations=distribution(seconds),
        steps=_steps(cursor),
        phases=_phases(cursor, where, given),
        latency=_scatter(found, seconds),
        gantt=_gantt(cursor, first, last),
    )


def _steps(cursor: Cursor) -> list[StepDistribution]:
    found = []
    for step, count, p50, p95, longest, failed in cursor.execute(_BY_STEP, {"limit": _MAX_STEPS}).fetchall()[::-1]:
        found.append(StepDistribution(step=step, count=count, p50=p50, p95=p95, max=longest, failed=failed))
    return found


def _phases(cursor: Cursor, where: str, given: dict[str, Any]) -> list[PhaseTotal]:
    waits = cursor.execute(_WAITS.format(where=where), given).fetchnumpy()
    values: dict[str, list[float]] = {}
    rows = cursor.execute(_PHASES.format(where=where), given | {"limit": _SECONDS_SAMPLE}).fetchall()
    for (text,) in rows:
        for name, seconds in msgspec.json.decode(text or "{}").items():
            values.setdefault(name, []).append(seconds)
    found = [_total(name.removesuffix("_s").replace("_", " "), _floats(column)) for name, column in waits.items()]
    found += [_total(name, np.array(column)) for name, column in values.items()]
    return sorted((one for one in found if one is not None), key=lambda one: -one.total_s)


def _total(name: str, seconds: NDArray[Any]) -> PhaseTotal | None:
    spread = distribution(seconds)
    if spread is None:
        return None
    return PhaseTotal(
        name=name,
        count=spread.count,
        average_s=spread.average,
        p50_s=spread.p50,
        p95_s=spread.p95,
        max_s=spread.max,
        total_s=spread.average * spread.count,
    )


def _scatter(found: dict[str, Any], seconds: NDArray[Any]) -> Scatter | None:
    starts = _floats(found["start_s"])
    known = np.flatnonzero(np.isfinite(starts) & np.isfinite(seconds))
    if not len(known):
        return None
    values = seconds[known]
    bound = outlier_bound(values)
    rows = known[sample_rows(values, bound, _POINTS)]
    statuses = [str(status) for status in found["status"][rows]]
    groups = sorted(set(statuses))
    p50, p95 = np.quantile(values, (0.5, 0.95)).tolist()
    return Scatter(
        name="sessions",
        total=len(known),
        p50_s=p50,
        p95_s=p95,
        outlier_s=bound,
        start_ns=np.rint(starts[rows] * 1e9).astype(np.int64).tolist(),
        duration_s=seconds[rows].tolist(),
        group=[groups.index(status) for status in statuses],
        groups=groups,
        label=[str(session_id) for session_id in found["session_id"][rows]],
    )


def _gantt(cursor: Cursor, first: int | None, last: int | None) -> list[SessionBars]:
    longest, _ = queries.sessions(cursor, first_step=first, last_step=last, order="total_s", limit=_GANTT_SESSIONS)
    drawn = [bars for session in longest if (bars := _session_bars(session)) is not None]
    return sorted(drawn, key=lambda one: one.start_ns)


def _session_bars(session: Session) -> SessionBars | None:
    bars = [
        Bar(name=name, start_ns=_ns(start), end_ns=_ns(end), outcome="wait")
        for name, start, end in _waits(session)
        if start is not None and end is not None and end > start
    ]
    for name, intervals in session.phases.items():
        for one in intervals:
            end = one.get("end_ts")
            bars.append(
                Bar(
                    name=name,
                    start_ns=_ns(one["start_ts"]),
                    end_ns=None if end is None else _ns(end),
                    outcome=one.get("outcome", "ok"),
                )
            )
    starts = [bar.start_ns for bar in bars] + ([_ns(session.submit_ts)] if session.submit_ts is not None else [])
    if not starts:
        return None
    end = session.finalized_ts or session.wait_return_ts
    return SessionBars(
        session_id=session.session_id,
        task_id=session.task_id,
        status=session.status,
        step=session.step,
        start_ns=min(starts),
        end_ns=None if end is None else _ns(end),
        bars=bars,
    )


def _waits(session: Session) -> list[tuple[str, float | None, float | None]]:
    executions = session.phases.get("execution", [])
    began = min((one["start_ts"] for one in executions), default=None)
    ended = min((one["end_ts"] for one in executions if one.get("end_ts") is not None), default=None)
    return [
        ("queue wait", session.submit_ts, session.enqueue_ts),
        ("runner wait", session.enqueue_ts, began),
        ("post wait", ended, session.wait_return_ts),
    ]


def _ns(seconds: float) -> int:
    return round(seconds * 1e6) * 1000


def _floats(column: Any) -> NDArray[np.float64]:
    """Return a column in which what is missing is NaN."""
    filled = column.filled(np.nan) if isinstance(column, np.ma.MaskedArray) else column
    return np.asarray(filled, np.float64)
