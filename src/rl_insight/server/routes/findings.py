"""Results of diagnosis: findings, rules that cannot be evaluated, muting; stacks of processes; annotations."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from rl_insight.diagnosis.run import Report, replay, sketch_coverage, without_muted
from rl_insight.diagnosis.settings import check_rule, make_settings
from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.server.http.answers import RunParameter, StrictBody, answers, json_answer, opened, reading, services_of
from rl_insight.server.http.made_files import work_slot
from rl_insight.store import queries
from rl_insight.store.queries.base import INTEGER_LIMIT

router = APIRouter(prefix="/api/v1")

RuleParameter = Annotated[str, Query(max_length=100, description="The name of a rule.")]


class Muted(msgspec.Struct, frozen=True):
    """The rules that are muted for a run."""

    rules: list[str]


class Asked(msgspec.Struct, frozen=True):
    """How many processes were asked."""

    asked: int
    """Without those that were asked within the last minute."""


class Replay(StrictBody):
    """Where the replay of a run ends, and its rules and thresholds."""

    at_ns: int | None = Field(default=None, ge=0, lt=LAST_TIME_NS)
    at_step: int | None = Field(default=None, gt=-INTEGER_LIMIT, lt=INTEGER_LIMIT)
    only: list[str] | None = Field(default=None, max_length=1000)
    """The rules to evaluate; by default all."""
    rules: dict[str, Any] | None = None
    """Thresholds, as in `diagnosis.rules`; by default the server's."""


@router.post(
    "/findings/replay",
    tags=["findings"],
    responses={**answers(Report), 429: {"description": "The server is busy: try again."}},
)
def replay_run(request: Request, how: Replay, run: RunParameter = None) -> Response:
    """Diagnose a run from its beginning, as it would have been diagnosed live; nothing is stored.

    Findings of muted rules are left out.
    """
    rules = services_of(request).settings.diagnosis.rules if how.rules is None else how.rules
    for name in how.only or ():
        check_rule(name)
    settings = make_settings(rules, None if how.only is None else frozenset(how.only))
    with work_slot(), reading(request, run) as cursor:
        found = without_muted(cursor, replay(cursor, settings, at_ns=how.at_ns, at_step=how.at_step))
    return json_answer(found)


@router.get("/findings/coverage", tags=["findings"], responses=answers(list[queries.Coverage]))
def coverage(request: Request, run: RunParameter = None) -> Response:
    """List the rules that cannot be evaluated, and the data each of them needs."""
    with reading(request, run) as cursor:
        known = queries.COVERAGE.read(cursor)
        return json_answer(sketch_coverage(cursor) if known is None else known)


@router.get("/findings/mute", tags=["findings"], responses=answers(Muted))
def muted_rules(request: Request, run: RunParameter = None) -> Response:
    """List the rules that are muted for a run."""
    with reading(request, run) as cursor:
        return json_answer(Muted(queries.muted_rules(cursor)))


@router.post("/findings/mute", tags=["findings"], responses=answers(Muted))
def mute(request: Request, rule: RuleParameter, muted: bool = True, run: RunParameter = None) -> Response:
    """Mute a rule for one run, or unmute it with `muted=false`."""
    check_rule(rule)
    with opened(request, run) as store:
        return json_answer(Muted(queries.mute_rule(store, rule, muted=muted)))


@router.post("/stacks", tags=["findings"], responses=answers(Asked))
def ask_for_stacks(request: Request, run: RunParameter = None) -> Response:
    """Ask every process of a run for its stacks; each answers within a heartbeat, at most once per minute.

    For a process that is silent, another process on its host is asked.
    """
    services = services_of(request)
    with reading(request, run) as cursor:
        live, silent = queries.running_processes(cursor, time.time_ns())
    return json_answer(Asked(services.stacks.ask(live) + services.stacks.ask_neighbors(silent)))


@router.post("/annotations", tags=["marks"], responses=answers(list[queries.Annotation]))
def annotate(
    request: Request,
    time_ns: Annotated[int, Query(ge=0, lt=LAST_TIME_NS, description="Aligned nanoseconds since 1970.")],
    text: Annotated[str, Query(max_length=1000, description="Empty to remove the annotation.")] = "",
    run: RunParameter = None,
) -> Response:
    """Annotate a point in time of a run; every time axis of the page shows it."""
    with opened(request, run) as store:
        return json_answer(queries.annotate(store, time_ns, text))
