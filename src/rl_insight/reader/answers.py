"""What a run file answers to the questions that a server's query routes answer, in the same shape."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from rl_insight.errors import ConfigError
from rl_insight.store import queries
from rl_insight.store.errors import QueryError
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.usage_by_state import usage_of_run

Conditions = Mapping[str, Any]
Answer = Callable[[Cursor, dict[str, Any]], Any]


def answer(cursor: Cursor, question: str, conditions: Conditions) -> Any:
    """Answer a question as the route `/api/v1/<question>` does; conditions that are None are left out.

    Raises:
        ConfigError: there is no such question, or it has no such condition.
        QueryError: it cannot be answered as asked.
    """
    if question not in ANSWERS:
        raise ConfigError(f"a run cannot be asked for {question!r}: choose one of {', '.join(sorted(ANSWERS))}.")
    given = {name: value for name, value in conditions.items() if value is not None}
    try:
        return msgspec.to_builtins(ANSWERS[question](cursor, given))
    except TypeError as error:
        raise ConfigError(f"cannot ask for {question} with {', '.join(given)}: {error}.") from error


def _findings(cursor: Cursor, given: dict[str, Any]) -> Any:
    """Return what live diagnosis stored; a file that it never saw is diagnosed now."""
    found = queries.visible_findings(cursor, **given)
    if found or queries.read_findings(cursor):
        return found
    from rl_insight.diagnosis.run import replay

    fresh = replay(cursor).findings
    silenced = set() if given.get("muted") else set(queries.muted_rules(cursor))
    kept = [finding for finding in fresh if finding.rule not in silenced]
    return kept if given.get("explained") else queries.top_findings(kept)


def _critical_path(cursor: Cursor, given: dict[str, Any]) -> Any:
    from rl_insight.diagnosis.critical_path import critical_path

    return critical_path(cursor, **given)


def _changes(cursor: Cursor, given: dict[str, Any]) -> Any:
    from rl_insight.diagnosis.changes import what_changed

    return what_changed(cursor, **given)


def _hotspots(cursor: Cursor, given: dict[str, Any]) -> Any:
    group_by, limit = given.pop("group_by", "name"), given.pop("limit", 500)
    return queries.hotspots(cursor, queries.Scope(**_lanes(given)), group_by, limit)


def _sessions(cursor: Cursor, given: dict[str, Any]) -> Any:
    found, total = queries.sessions(cursor, **given)
    return {"total": total, "sessions": found}


def _transcript(cursor: Cursor, given: dict[str, Any]) -> Any:
    found = queries.session_transcript(cursor, **given)
    if found is None:
        raise QueryError(f"there is no session {given['session_id']!r} in this run.")
    return found


def _range(cursor: Cursor, given: dict[str, Any]) -> Any:
    group_by = given.pop("group_by", None)
    groups = None if group_by is None or "*" in group_by else [label for label in group_by if label]
    matchers = queries.parse_matchers(given.pop("match", None))
    smoothing = given.pop("smoothing", 0.0)
    lines = queries.range_query(cursor, given.pop("metric"), matchers=matchers, group_by=groups, **given)
    return [line.smoothed(smoothing) for line in lines]


def _spans(cursor: Cursor, given: dict[str, Any]) -> Any:
    attribute = given.pop("attribute", None)
    pair = None if attribute is None else tuple(part.strip() for part in attribute.split("=", 1))
    return queries.search_spans(cursor, attribute=pair, **_lanes(given))


def _lanes(given: dict[str, Any]) -> dict[str, Any]:
    """Name lanes as the queries do."""
    return {"lane_ids" if name == "lane" else name: value for name, value in given.items()}


ANSWERS: dict[str, Answer] = {
    "config": lambda cursor, given: queries.run_config(cursor, **given),
    "events": lambda cursor, given: queries.search_events(cursor, **_lanes(given)),
    "findings": _findings,
    "hardware/by_state": lambda cursor, given: usage_of_run(cursor, **given),
    "hotspots": _hotspots,
    "lanes": lambda cursor, given: queries.lanes(cursor, **given),
    "logs": lambda cursor, given: queries.search_logs(cursor, **_lanes(given)),
    "losses": lambda cursor, given: queries.losses(cursor, **given),
    "marks": lambda cursor, given: queries.marks(cursor, **given),
    "metrics": lambda cursor, given: queries.metrics(cursor, **given),
    "metrics/labels": lambda cursor, given: queries.label_values(cursor, **given),
    "metrics/range": _range,
    "open/spans": lambda cursor, given: queries.open_spans(cursor, **given),
    "open/work": lambda cursor, given: queries.open_work(cursor, time.time_ns(), **given),
    "processes": lambda cursor, given: queries.processes(cursor, time.time_ns(), **given),
    "sessions": _sessions,
    "sessions/groups": lambda cursor, given: queries.session_groups(cursor, **given),
    "sessions/groups/steps": lambda cursor, given: queries.group_steps(cursor, **given),
    "sessions/staleness": lambda cursor, given: queries.staleness(cursor, **given),
    "sessions/transcript": _transcript,
    "sessions/in_flight": lambda cursor, given: queries.sessions_in_flight(cursor, time.time_ns(), **given),
    "spans": _spans,
    "spans/series": lambda cursor, given: queries.span_series(cursor, **_lanes(given)),
    "stacks": lambda cursor, given: queries.group_stacks(queries.read_stacks(cursor), **given),
    "steps": lambda cursor, given: queries.steps(cursor, given.pop("limit", 200), **given),
    "steps/breakdown": lambda cursor, given: queries.breakdown(cursor, **given),
    "steps/changes": _changes,
    "steps/compare": lambda cursor, given: queries.compare_step(cursor, **given),
    "steps/critical_path": _critical_path,
    "steps/idle": lambda cursor, given: queries.idle_by_role(cursor, **given),
    "steps/metrics": lambda cursor, given: queries.step_metrics(cursor, **given),
    "steps/ranks": lambda cursor, given: queries.rank_steps(cursor, **given),
    "summary": lambda cursor, given: queries.summary(cursor, **given),
}
"""A question, named as its route, to the query that answers it."""
