"""Data that no process recorded itself, as OTLP: derived metrics, and the findings of diagnosis.

Derived metrics have one resource per run; findings are log records.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from rl_insight.collector.base import StoredRuns
from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Family
from rl_insight.otlp.encode.items import LogItem
from rl_insight.otlp.encode.protobuf import EncodedMetric, encode_family
from rl_insight.otlp.mapping import EVENT_NAME
from rl_insight.schema import Process

SERVICE: Final = "rl-insight"
"""The `service.name` of data that no process of a run recorded itself."""
FINDING_SCOPE: Final = "rl_insight.findings"
_LEVELS: Final = {"critical": logging.CRITICAL, "warning": logging.WARNING}
_FINDING_FIELDS: Final = (
    *("finding_id", "rule", "severity", "status", "title", "explanation", "remedy", "culprit", "impact"),
    *("first_step", "last_step", "start_ns", "end_ns", "updated_ns"),
)
_READ_FINDINGS: Final = f"""
    SELECT {", ".join(_FINDING_FIELDS)} FROM findings WHERE updated_ns > $since ORDER BY updated_ns
"""  # noqa: S608  (constants)


def finding_logs(runs: StoredRuns, run_id: str, since_ns: int) -> tuple[list[LogItem], int]:
    """Return a log record for each version of a finding written after a time, and when the newest was written."""
    with runs.open(run_id) as store, store.reader() as cursor:
        rows = cursor.execute(_READ_FINDINGS, {"since": since_ns}).fetchall()
    found = []
    for row in rows:
        fields: dict[str, Any] = dict(zip(_FINDING_FIELDS, row, strict=True))
        fields = {name: value for name, value in fields.items() if value is not None} | {EVENT_NAME: "rl.finding"}
        level = _LEVELS.get(fields["severity"], logging.INFO)
        text = f"{fields['status']}: {fields['title']}"
        found.append(LogItem(FINDING_SCOPE, fields["updated_ns"], level, text, fields))
    return found, max((row[-1] for row in rows), default=since_ns)


def encode_derived(
    families: Iterable[Family], started_ns: int, now_ns: int
) -> Iterator[tuple[Process, list[EncodedMetric]]]:
    """Yield the derived metrics of each run, with a process that represents the run."""
    by_run: dict[RunKey, list[EncodedMetric]] = {}
    for family in families:
        for run, part in _by_run(family).items():
            by_run.setdefault(run, []).append(encode_family(part, started_ns, now_ns))
    for run, metrics in by_run.items():
        yield run_process(run, started_ns), metrics


def run_process(run: RunKey, started_ns: int = 0) -> Process:
    """Return a process that represents a run, for data that no process of the run recorded itself."""
    return Process(
        process_id=f"{SERVICE}/{run.project}/{run.experiment_name}/{run.run_id}",
        project=run.project,
        experiment_name=run.experiment_name,
        run_id=run.run_id,
        role=SERVICE,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ns=started_ns,
    )


def _by_run(family: Family) -> dict[RunKey, Family]:
    parts: dict[RunKey, Family] = {}
    for point in family.points:
        # A total without a run, such as the overflow counter, is sent only if it is not zero.
        if not point.labels and not point.value:
            continue
        given = dict(point.labels)
        run = RunKey(given.get("project", ""), given.get("experiment_name", ""), given.get("run_id", ""))
        if run not in parts:
            parts[run] = msgspec.structs.replace(family, points=[])
        parts[run].points.append(point)
    return parts
