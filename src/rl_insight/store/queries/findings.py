"""Findings: what diagnosis found in a run, as stored and as answered by the API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np

from rl_insight.schema.names import SEVERITIES
from rl_insight.store.frame import Frame, column_of
from rl_insight.store.inserts import arriving
from rl_insight.store.queries.base import Cursor, Kept
from rl_insight.store.run_store import RunStore

STALLED_RUN: Final = "stalled_run"
"""The rule for a run that makes no progress."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A fault in a run: its culprit, its cost, its evidence and what to do about it."""

    finding_id: str
    """Stable: the same fault of the same culprit keeps its id, even when found again offline."""
    rule: str
    severity: str
    """`info`, `warning` or `critical`."""
    title: str
    start_ns: int
    end_ns: int
    status: str = "open"
    """`open` or `resolved`."""
    explanation: str = ""
    remedy: str = ""
    culprit: dict[str, Any] = {}
    impact: dict[str, float] = {}
    """`seconds_per_step` and `share_of_step` that a fix would save; empty where the cost is not time."""
    first_step: int | None = None
    last_step: int | None = None
    lanes: list[int] = []
    sessions: list[str] = []
    metrics: list[str] = []
    evidence: list[dict[str, Any]] = []
    """Each with `name`, `value`, and where they apply `unit` and `compared_with`."""
    explains: list[str] = []
    """Ids of the findings that this one makes redundant."""
    updated_ns: int = 0


_JSON = ("culprit", "impact", "lanes", "sessions", "metrics", "evidence", "explains")
_TYPES: dict[str, type[Any]] = dict.fromkeys(("first_step", "last_step", "start_ns", "end_ns", "updated_ns"), np.int64)
_COLUMNS = ", ".join(Finding.__struct_fields__)
_READ = f"SELECT {_COLUMNS} FROM findings ORDER BY start_ns DESC, finding_id"  # noqa: S608  (constants)
_DELETE = "DELETE FROM findings WHERE finding_id IN (SELECT finding_id FROM arriving)"
_INSERT = f"INSERT INTO findings ({_COLUMNS}) SELECT {_COLUMNS} FROM arriving"  # noqa: S608  (constants)


def write_findings(store: RunStore, findings: list[Finding]) -> None:
    """Write findings, replacing those with the same ids."""
    if not findings:
        return
    rows = {finding.finding_id: finding for finding in findings}.values()
    columns = {}
    for name in Finding.__struct_fields__:
        values = [getattr(finding, name) for finding in rows]
        if name in _JSON:
            values = [msgspec.json.encode(value).decode() for value in values]
        columns[name] = column_of(values, _TYPES.get(name, str))
    with store.writing() as connection, arriving(connection, [Frame(columns)]):
        connection.execute(_DELETE)
        connection.execute(_INSERT)


def read_findings(cursor: Cursor) -> list[Finding]:
    """Return all findings, the latest first."""
    return [_finding(row) for row in cursor.execute(_READ).fetchall()]


def visible_findings(cursor: Cursor, *, explained: bool = False, muted: bool = False) -> list[Finding]:
    """Return what diagnosis found: open findings first, the most severe and latest first.

    `explained` and `muted` include those that another finding explains, and those of muted rules.
    """
    silenced = set() if muted else set(muted_rules(cursor))
    kept = [finding for finding in read_findings(cursor) if finding.rule not in silenced]
    return kept if explained else top_findings(kept)


class Coverage(msgspec.Struct, frozen=True):
    """A rule that could not be evaluated, and the data that it needs."""

    rule: str
    missing: str


COVERAGE: Final = Kept[list[Coverage]]("diagnosis_coverage", list[Coverage])
"""The rules that could not be evaluated when the run was last diagnosed."""


def is_stalled(cursor: Cursor) -> bool:
    """Return whether diagnosis found, at more than `info` severity, that the run makes no progress."""
    sql = "SELECT count(*) FROM findings WHERE rule = $rule AND status = 'open' AND severity <> 'info'"
    ((found,),) = cursor.execute(sql, {"rule": STALLED_RUN}).fetchall()
    return bool(found)


class Diagnosed(msgspec.Struct, frozen=True):
    """The input of a diagnosis: the same rules and records give the same findings."""

    rules: str
    """Which rules with which settings."""
    extent: list[int]
    """How many records of each kind there were, and the known state of the processes."""


DIAGNOSED: Final = Kept[Diagnosed]("diagnosed", Diagnosed)
"""The input of the last diagnosis that reached the end of the run."""
ANNOUNCED: Final = Kept[list[str]]("told_findings", list[str])
"""The ids of the findings that alerts have reported as open and not as resolved since: a later server must not repeat
them."""
_MUTED: Final = Kept[list[str]]("muted_rules", list[str])
_READ_BY_RULES = ("span_data", "open_span_data", "sample_data", "event_data", "log_data", "sessions", "series")
_EXTENT = f"""
    SELECT {", ".join(f"(SELECT count(*) FROM {table})" for table in _READ_BY_RULES)},
        (SELECT count(*) FROM sessions WHERE status = 'pending'), (SELECT coalesce(sum(count), 0)::BIGINT FROM losses),
        count(*), count(*) FILTER (final), coalesce(max(last_seen_ns), 0) FROM processes
"""  # noqa: S608  (constants)


def read_extent(cursor: Cursor) -> list[int]:
    """Return how many records a run has; any new input of the rules changes it."""
    (found,) = cursor.execute(_EXTENT).fetchall()
    return list(found)


def muted_rules(cursor: Cursor) -> list[str]:
    """Return the rules that are muted for this run."""
    return sorted(_MUTED.read(cursor) or [])


def mute_rule(store: RunStore, rule: str, *, muted: bool = True) -> list[str]:
    """Mute a rule for this run, or unmute it; return the rules that are muted now."""
    with store.writing() as connection:
        kept = {*muted_rules(connection), rule} if muted else set(muted_rules(connection)) - {rule}
        _MUTED.put(connection, sorted(kept))
    return sorted(kept)


def top_findings(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings that no other one explains: open ones first, the most severe and latest first."""
    every = list(findings)
    redundant = {finding_id for finding in every for finding_id in finding.explains}
    order: dict[str, int] = {severity: place for place, severity in enumerate(SEVERITIES)}
    kept = [finding for finding in every if finding.finding_id not in redundant]
    return sorted(kept, key=lambda one: (one.status != "open", -order.get(one.severity, -1), -one.start_ns))


def _finding(row: tuple[Any, ...]) -> Finding:
    values = dict(zip(Finding.__struct_fields__, row, strict=True))
    return Finding(**values | {name: msgspec.json.decode(values[name]) for name in _JSON})
