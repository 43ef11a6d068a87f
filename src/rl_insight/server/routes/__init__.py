"""The HTTP routes, one module a group. A new group is added to `ROUTERS`."""

from fastapi import APIRouter

from rl_insight.server.routes import (
    analysis,
    clients,
    exports,
    findings,
    hardware,
    health,
    ingest,
    live,
    logs,
    marks,
    metrics,
    runs,
    sql,
    stacks,
    targets,
    timeline,
    trace,
    views,
)

ROUTERS: tuple[APIRouter, ...] = tuple(
    module.router
    for module in (
        health,
        runs,
        timeline,
        trace,
        exports,
        analysis,
        findings,
        stacks,
        metrics,
        hardware,
        logs,
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
