"""What diagnosis found: findings, what could not be judged, and muting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from rl_insight.diagnosis.run import sketch_coverage
from rl_insight.diagnosis.settings import check_rule
from rl_insight.server.http.answers import RunParameter, answers, json_answer, latest_run, reading
from rl_insight.store import queries

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1/findings", tags=["findings"])

RuleParameter = Annotated[str, Query(max_length=100, description="The name of a rule.")]


class Muted(msgspec.Struct, frozen=True):
    """The rules that are muted for a run."""

    rules: list[str]


@router.get("", responses=answers(list[queries.Finding]))
def findings(
    request: Request,
    explained: Annotated[bool, Query(description="Also those that another finding explains.")] = False,
    muted: Annotated[bool, Query(description="Also those of muted rules.")] = False,
    run: RunParameter = None,
) -> Response:
    """List what diagnosis found: open findings first, the most severe and latest first."""
    with reading(request, run) as cursor:
        return json_answer(queries.visible_findings(cursor, explained=explained, muted=muted))


@router.get("/coverage", responses=answers(list[queries.Coverage]))
def coverage(request: Request, run: RunParameter = None) -> Response:
    """List the rules that cannot be evaluated, and what each of them would need."""
    with reading(request, run) as cursor:
        known = queries.read_coverage(cursor)
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
    services: Services = request.app.state.services
    run_id = run if run is not None else latest_run(services)
    with services.runs.open(run_id) as store:
        return json_answer(Muted(queries.mute_rule(store, rule, muted=muted)))
