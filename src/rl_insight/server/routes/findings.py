"""What diagnosis found: findings, what could not be judged, and muting."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from rl_insight.diagnosis.run import Report, heard, replay, sketch_coverage
from rl_insight.diagnosis.settings import check_rule, make_settings
from rl_insight.server.http.answers import RunParameter, answers, json_answer, opened, reading, services_of
from rl_insight.server.http.made_files import turn
from rl_insight.store import queries

router = APIRouter(prefix="/api/v1/findings", tags=["findings"])

RuleParameter = Annotated[str, Query(max_length=100, description="The name of a rule.")]


class Muted(msgspec.Struct, frozen=True):
    """The rules that are muted for a run."""

    rules: list[str]


class Replay(BaseModel):
    """Up to when, and how, a run is diagnosed."""

    model_config = ConfigDict(extra="forbid")

    at_ns: int | None = Field(default=None, ge=0, lt=2**62)
    at_step: int | None = Field(default=None, gt=-(2**62), lt=2**62)
    only: list[str] | None = Field(default=None, max_length=1000)
    """The rules whose findings are wanted; by default all."""
    rules: dict[str, Any] | None = None
    """Thresholds, as `diagnosis.rules` has them; by default those of the server."""


@router.post("/replay", responses={**answers(Report), 429: {"description": "The server is busy: try again."}})
def replay_run(request: Request, how: Replay, run: RunParameter = None) -> Response:
    """Diagnose a run from its beginning, as it would have been diagnosed while it ran; nothing is stored.

    Findings of muted rules are left out.
    """
    rules = services_of(request).settings.diagnosis.rules if how.rules is None else how.rules
    for name in how.only or ():
        check_rule(name)
    settings = make_settings(rules, None if how.only is None else frozenset(how.only))
    with turn(), reading(request, run) as cursor:
        found = heard(cursor, replay(cursor, settings, at_ns=how.at_ns, at_step=how.at_step))
    return json_answer(found)


@router.get("/coverage", responses=answers(list[queries.Coverage]))
def coverage(request: Request, run: RunParameter = None) -> Response:
    """List the rules that cannot be evaluated, and what each of them would need."""
    with reading(request, run) as cursor:
        known = queries.COVERAGE.read(cursor)
        return json_answer(sketch_coverage(cursor) if known is None else known)


@router.get("/mute", responses=answers(Muted))
def muted_rules(request: Request, run: RunParameter = None) -> Response:
    """List the rules that are muted for a run."""
    with reading(request, run) as cursor:
        return json_answer(Muted(queries.muted_rules(cursor)))


@router.post("/mute", responses=answers(Muted))
def mute(request: Request, rule: RuleParameter, muted: bool = True, run: RunParameter = None) -> Response:
    """Mute a rule for one run, or unmute it with `muted=false`."""
    check_rule(rule)
    with opened(request, run) as store:
        return json_answer(Muted(queries.mute_rule(store, rule, muted=muted)))
