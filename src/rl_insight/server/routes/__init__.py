"""The HTTP routes, one module a group. A new group is added to `ROUTERS`."""

from fastapi import APIRouter

from rl_insight.server.routes import (
    clients,
    exports,
    findings,
    health,
    ingest,
    live,
    marks,
    questions,
    runs,
    sql,
    stacks,
    targets,
    views,
)

ROUTERS: tuple[APIRouter, ...] = tuple(
    module.router
    for module in (
        health,
        runs,
        questions,
        exports,
        findings,
        stacks,
        marks,
        views,
        live,
        sql,
        targets,
        clients,
        ingest,
    )
)
"""Every group of the main port, in the order of the documentation."""
