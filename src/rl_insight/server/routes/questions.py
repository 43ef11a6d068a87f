"""The questions of `rl_insight.questions` as routes: their conditions become query parameters with limits."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Annotated, Any, get_origin

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.config.fields import parts_of
from rl_insight.diagnosis.changes import MAX_WINDOW
from rl_insight.diagnosis.critical_path import MAX_STEPS
from rl_insight.questions import QUESTIONS, Condition, Question
from rl_insight.server.http.answers import STEP, TIME, RunParameter, answers, json_answer, reading
from rl_insight.store.queries.base import INTEGER_LIMIT
from rl_insight.store.queries.span_series import MAX_INTERVALS, MAX_POINTS
from rl_insight.store.queries.timeline import MAX_BLOCKS, MAX_PIXELS
from rl_insight.store.queries.transcripts import MAX_CHARACTERS

router = APIRouter(prefix="/api/v1")

_COUNT: dict[str, Any] = {"ge": 0, "lt": INTEGER_LIMIT}
_NUMBER: dict[str, Any] = {"allow_inf_nan": False}
_LIMITS: dict[str, dict[str, Any]] = {
    "attribute": {"max_length": 1000, "pattern": "=", "description": "`key=value`."},
    "end_ns": TIME,
    "explained": {"description": "Include findings explained by another one."},
    "first": STEP,
    "first_step": STEP,
    "group_by": {"max_length": 50, "description": "Labels to group by; `*` (the default) keeps every series."},
    "intervals": {"ge": 1, "le": MAX_INTERVALS},
    "lane": {"description": "Lane ids."},
    "last": STEP | {"description": "Only steps up to this one."},
    "last_step": STEP,
    "last_steps": {"ge": 1, "le": 1_000_000},
    "least_reward": _NUMBER,
    "least_samples": {"ge": 1, "lt": 2**31},
    "least_tokens": _COUNT,
    "least_turns": _COUNT,
    "level": {"ge": 0, "le": 1000, "description": "The minimum level, as in `logging`."},
    "limit": {"ge": 1, "le": 10_000},
    "longer_than_ns": _COUNT | {"description": "Nanoseconds."},
    "longer_than_s": {"ge": 0, "le": 1e12},
    "match": {"max_length": 50, "description": "`label=value`, or `label=~regex` (RE2); all must match."},
    "max_blocks": {"ge": 100, "le": MAX_BLOCKS},
    "max_characters": {"ge": 1, "le": MAX_CHARACTERS, "description": "The maximum total length of the text."},
    "max_gap_s": {"gt": 0, "le": 3600, "description": "Gaps between samples longer than this count as unknown."},
    "metric": {"max_length": 1000, "description": "The metric's name."},
    "most_reward": _NUMBER,
    "most_tokens": _COUNT,
    "most_turns": _COUNT,
    "muted": {"description": "Include findings of muted rules."},
    "offset": {"ge": 0, "lt": 2**31},
    "origin_ns": TIME | {"description": "Times in the response are relative to this."},
    "pixels": {"ge": 1, "le": MAX_PIXELS},
    "points": {"ge": 0, "le": MAX_POINTS, "description": "About how many single spans to return."},
    "rank": {"ge": 0, "lt": 2**31, "description": "A process's number within its role."},
    "rows": {"ge": 1, "le": 1000},
    "share": {"max_length": 20},
    "smoothing": {"ge": 0, "le": 0.999, "description": "The weight of a point relative to the next."},
    "span_id": {"pattern": "^[0-9a-fA-F]{1,16}$", "description": "16 hexadecimal digits."},
    "start_ns": TIME,
    "status": {"max_length": 20},
    "step": STEP,
    "steps": {"description": "Include the training step of each block."},
    "trace_id": {"pattern": "^[0-9a-fA-F]{32}$"},
    "width": {
        "ge": 1,
        "lt": INTEGER_LIMIT,
        "description": "The interval width: nanoseconds, or steps on the step axis.",
    },
    "window": {"ge": 1, "le": MAX_WINDOW, "description": "Steps to compare on each side."},
}
"""The limits of a condition, the same in every question."""
_ANY_TIME = {"gt": -INTEGER_LIMIT, "lt": INTEGER_LIMIT, "description": "Aligned nanoseconds since 1970."}
_OWN_LIMITS: dict[str, dict[str, dict[str, Any]]] = {
    "steps": {"limit": {"ge": 1, "le": 1000}},
    "steps/critical_path": {"limit": {"ge": 1, "le": MAX_STEPS}},
    **{f"metrics/{name}": {"start_ns": _ANY_TIME, "end_ns": _ANY_TIME} for name in ("range", "quantiles", "heatmap")},
}
"""Exceptions, by question."""
_LISTS: dict[str, Any] = {
    "lane": list[Annotated[int, Query(ge=0, lt=2**31)]] | None,
    "share": list[Annotated[float, Query(ge=0, le=1)]],
}
"""Lists with limits on their items."""
_MAX_TEXT = 1000


def _add(name: str, question: Question) -> None:
    own = _OWN_LIMITS.get(name, {})
    parameters = [_parameter(one, condition, own) for one, condition in question.conditions.items()]
    request = Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=Request)
    run = Parameter("run", Parameter.KEYWORD_ONLY, default=None, annotation=RunParameter)
    endpoint = _endpoint(question)
    endpoint.__name__ = name.replace("/", "_")
    endpoint.__signature__ = Signature([request, *parameters, run])  # type: ignore[attr-defined]
    described = answers(question.kind)
    router.get(f"/{name}", tags=[question.group], description=question.text, responses=described)(endpoint)


def _endpoint(question: Question) -> Callable[..., Response]:
    def endpoint(request: Request, run: str | None = None, **given: Any) -> Response:
        with reading(request, run) as cursor:
            return json_answer(question.ask(cursor, given))

    return endpoint


def _parameter(name: str, condition: Condition, own: dict[str, dict[str, Any]]) -> Parameter:
    kind = _LISTS.get(name, condition.kind)
    parts = parts_of(kind)
    limits = own.get(name, _LIMITS.get(name, {"max_length": _MAX_TEXT} if str in parts else {}))
    is_text = any(part is str or get_origin(part) is list for part in parts)
    if not is_text:
        limits = {key: value for key, value in limits.items() if key != "max_length"}
    annotation: Any = Annotated[kind, Query(**limits)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=condition.default, annotation=annotation)


for _name, _question in QUESTIONS.items():
    _add(_name, _question)
