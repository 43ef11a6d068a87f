"""Sessions that ended and findings of diagnosis as OTLP log records: spans do not say how they came out."""

from __future__ import annotations

import logging
from typing import Any, Final

from rl_insight.collector.base import StoredRuns
from rl_insight.otlp.encode.items import LogItem
from rl_insight.otlp.mapping import severity
from rl_insight.schema import Batch
from rl_insight.schema.records import read_object
from rl_insight.sessions.model import FAILED, PENDING

SESSION_SCOPE: Final = "rl_insight.sessions"
FINDING_SCOPE: Final = "rl_insight.findings"
_EVENT_NAME: Final = "event.name"
_LEVELS: Final = {"critical": logging.CRITICAL, "error": logging.ERROR, "warning": logging.WARNING}
_FINDING_FIELDS: Final = (
    *("finding_id", "rule", "severity", "status", "title", "explanation", "remedy", "culprit", "impact"),
    *("first_step", "last_step", "start_ns", "end_ns", "updated_ns"),
)
_READ_FINDINGS: Final = f"""
    SELECT {", ".join(_FINDING_FIELDS)} FROM findings WHERE updated_ns > $since ORDER BY updated_ns
"""  # noqa: S608  (constants)


def session_logs(batch: Batch) -> list[LogItem]:
    """Return a log record for each session of a batch that has ended, with everything that its owner said about it."""
    if not len(batch.sessions):
        return []
    found = []
    for session_at, task_at, status_at, time_ns, record_at in batch.sessions.rows():
        session_id, status = batch.text(session_at) or "", batch.text(status_at) or PENDING
        if status == PENDING:
            continue
        told = read_object(batch.text(record_at))
        told |= {"session_id": session_id, "status": status, _EVENT_NAME: "rl.session"}
        if task_at:
            told["task_id"] = batch.text(task_at)
        level = logging.ERROR if status == FAILED else logging.INFO
        found.append(_log(SESSION_SCOPE, time_ns, level, f"session {session_id} {status}", told))
    return found


def finding_logs(runs: StoredRuns, run_id: str, since_ns: int) -> tuple[list[LogItem], int]:
    """Return a log record for each version of a finding written after a time, and when the newest was written."""
    with runs.open_run(run_id) as store, store.reader() as cursor:
        rows = cursor.execute(_READ_FINDINGS, {"since": since_ns}).fetchall()
    found = []
    for row in rows:
        told: dict[str, Any] = dict(zip(_FINDING_FIELDS, row, strict=True))
        told = {name: value for name, value in told.items() if value is not None} | {_EVENT_NAME: "rl.finding"}
        level = _LEVELS.get(told["severity"], logging.INFO)
        found.append(_log(FINDING_SCOPE, told["updated_ns"], level, f"{told['status']}: {told['title']}", told))
    return found, max((row[-1] for row in rows), default=since_ns)


def _log(scope: str, time_ns: int, level: int, body: str, attributes: dict[str, Any]) -> LogItem:
    return LogItem(
        scope=scope,
        time_ns=max(time_ns, 0),
        severity=severity(level),
        severity_text=logging.getLevelName(level),
        body=body,
        trace=(0, 0),
        span_id=0,
        attributes=attributes,
    )
