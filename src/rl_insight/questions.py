"""The questions that a run can answer: one list for the server's routes and for readers of run files."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from rl_insight.config.fields import parts_of
from rl_insight.diagnosis.changes import what_changed
from rl_insight.diagnosis.critical_path import critical_path
from rl_insight.schema.json_values import json_form
from rl_insight.sessions.records import SessionRecord
from rl_insight.store import queries
from rl_insight.store.errors import NotFoundError
from rl_insight.store.queries import Cursor, Line, StoredSession
from rl_insight.store.queries.gpus_now import gpus_now
from rl_insight.store.queries.hardware import usage_of_run

_SPELLED = {
    "lane_ids": "lane",
    "matchers": "match",
    "shares": "share",
    "with_devices": "devices",
    "with_steps": "steps",
}
"""Query parameters that have other names in questions."""
_NOT_ASKED = {"cursor", "now_ns"}
"""Query parameters that are not conditions of a question."""


class SessionPage(msgspec.Struct, frozen=True):
    """A page of sessions, and the total count."""

    total: int
    sessions: list[StoredSession]


class Condition(NamedTuple):
    """A condition of a question."""

    kind: Any
    default: Any
    """`inspect.Parameter.empty` if it is required."""


def _fields(kind: Any) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the fields of a struct of conditions, by their names in questions; none for any other type."""
    is_struct = isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    return {_SPELLED.get(one.name, one.name): one for one in msgspec.structs.fields(kind)} if is_struct else {}


class Question:
    """A query that answers a question; its parameters are the question's conditions.

    Args:
        group: the topic of the question.
        query: a function of a cursor and conditions; it returns None for an unknown id.
        shape: converts the query's result into the answer; by default they are the same.
    """

    def __init__(self, group: str, query: Callable[..., Any], shape: Callable[[Any], Any] | None = None) -> None:
        self.group = group
        self._query = query
        self._shape = shape

    @property
    def text(self) -> str:
        """The description, from the docstring of the query."""
        return inspect.cleandoc(self._query.__doc__ or "").partition("\n\nArgs:")[0].partition("\n\nRaises:")[0]

    @property
    def kind(self) -> Any:
        """The type of the answer."""
        kind = inspect.signature(self._shape or self._query, eval_str=True).return_annotation
        return next(iter(parts_of(kind)))

    @cached_property
    def conditions(self) -> dict[str, Condition]:
        """The conditions by name; the fields of a struct of conditions count individually."""
        found: dict[str, Condition] = {}
        for name, parameter in self._parameters.items():
            if fields := _fields(parts_of(parameter.annotation)[0]):
                found |= {spelled: Condition(field.type, field.default) for spelled, field in fields.items()}
            elif name not in _NOT_ASKED:
                found[_SPELLED.get(name, name)] = Condition(parameter.annotation, parameter.default)
        return found

    @property
    def required(self) -> list[str]:
        """The required conditions."""
        return [name for name, one in self.conditions.items() if one.default is inspect.Parameter.empty]

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self._query, eval_str=True).parameters

    def ask(self, cursor: Cursor, given: Mapping[str, Any]) -> Any:
        """Return a run's answer; conditions that are None are ignored.

        Raises:
            NotFoundError: the run has no such id.
            QueryError: a condition is invalid.
        """
        wanted: dict[str, Any] = {}
        known = {spelled: value for spelled, value in given.items() if value is not None}
        for name, parameter in self._parameters.items():
            spelled = _SPELLED.get(name, name)
            if fields := _fields(kind := parts_of(parameter.annotation)[0]):
                wanted[name] = kind(**{field.name: known[one] for one, field in fields.items() if one in known})
            elif name == "now_ns":
                wanted[name] = time.time_ns()
            elif spelled in known:
                wanted[name] = known[spelled]
        found = self._query(cursor, **wanted)
        if found is None:
            name, value = next(iter(wanted.items()))
            raise NotFoundError(f"there is no {name.removesuffix('_id')} {value[:80]!r} in this run.")
        return found if self._shape is None else self._shape(found)


def _page(found: tuple[list[StoredSession], int]) -> SessionPage:
    return SessionPage(found[1], found[0])


def _plain(found: SessionRecord) -> dict[str, Any]:
    plain: dict[str, Any] = json_form(dict(found))
    return plain


def _for_json(lines: list[Line]) -> list[Line]:
    return [line.for_json() for line in lines]


QUESTIONS: dict[str, Question] = {
    "config": Question("runs", queries.run_config),
    "summary": Question("runs", queries.summary),
    "processes": Question("runs", queries.processes),
    "losses": Question("runs", queries.losses),
    "lanes": Question("timeline", queries.lanes),
    "lanes/idle": Question("timeline", queries.lane_idle),
    "timeline": Question("timeline", queries.timeline),
    "span": Question("timeline", queries.span_detail),
    "spans": Question("timeline", queries.search_spans),
    "spans/series": Question("timeline", queries.span_series),
    "open/work": Question("timeline", queries.open_work),
    "open/spans": Question("timeline", queries.open_spans),
    "marks": Question("timeline", queries.marks),
    "hotspots": Question("analysis", queries.hotspots),
    "hotspots/flame": Question("analysis", queries.flame),
    "steps": Question("analysis", queries.steps),
    "steps/breakdown": Question("analysis", queries.breakdown),
    "steps/critical_path": Question("analysis", critical_path),
    "steps/idle": Question("analysis", queries.idle_by_role),
    "steps/compare": Question("analysis", queries.compare_step),
    "steps/pace": Question("analysis", queries.step_pace),
    "steps/changes": Question("analysis", what_changed),
    "steps/ranks": Question("analysis", queries.rank_steps),
    "steps/metrics": Question("analysis", queries.step_metrics),
    "sessions": Question("analysis", queries.sessions, _page),
    "sessions/durations": Question("analysis", queries.session_durations),
    "sessions/steps": Question("analysis", queries.session_steps),
    "sessions/in_flight": Question("analysis", queries.sessions_in_flight),
    "sessions/groups": Question("analysis", queries.session_groups),
    "sessions/groups/steps": Question("analysis", queries.group_steps),
    "sessions/staleness": Question("analysis", queries.staleness),
    "sessions/record": Question("analysis", queries.session_record, _plain),
    "sessions/transcript": Question("analysis", queries.session_transcript),
    "findings": Question("findings", queries.visible_findings),
    "stacks": Question("findings", queries.stack_groups),
    "metrics": Question("metrics", queries.metrics),
    "metrics/labels": Question("metrics", queries.label_values),
    "metrics/range": Question("metrics", queries.range_query, _for_json),
    "metrics/quantiles": Question("metrics", queries.quantiles, _for_json),
    "metrics/heatmap": Question("metrics", queries.heat_map),
    "hardware/now": Question("hardware", gpus_now),
    "hardware/by_state": Question("hardware", usage_of_run),
    "logs": Question("logs", queries.search_logs),
    "logs/histogram": Question("logs", queries.log_histogram),
    "events": Question("logs", queries.search_events),
}
"""By name, which is the path of the route under `/api/v1/`."""
