"""Stacks of processes: those that were sent, and asking for new ones."""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter, Request
from fastapi.responses import Response

from rl_insight.server.http.answers import RunParameter, answers, json_answer, reading, services_of
from rl_insight.store import queries

router = APIRouter(prefix="/api/v1/stacks", tags=["findings"])


class Asked(msgspec.Struct, frozen=True):
    """How many processes were asked."""

    asked: int
    """Without those that were asked within the last minute."""


@router.post("", responses=answers(Asked))
def ask_for_stacks(request: Request, run: RunParameter = None) -> Response:
    """Ask every process of a run for its stacks; each answers within a heartbeat, at most once a minute.

    Another process of its host is asked about one that is silent.
    """
    services = services_of(request)
    with reading(request, run) as cursor:
        live, silent = queries.running_processes(cursor, time.time_ns())
    return json_answer(Asked(services.stacks.ask(live) + services.stacks.ask_neighbors(silent)))
