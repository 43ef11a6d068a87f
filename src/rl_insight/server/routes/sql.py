"""SQL queries on a run."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from pydantic import Field

from rl_insight.server.http.answers import RunParameter, StrictBody, answers, opened, services_of
from rl_insight.store import queries
from rl_insight.store.queries.sql import MAX_TEXT

router = APIRouter(prefix="/api/v1", tags=["sql"])


class SqlQuery(StrictBody):
    """One SELECT."""

    sql: str = Field(max_length=MAX_TEXT)
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    max_rows: int = Field(default=10_000, ge=1, le=100_000)


@router.post(
    "/sql",
    responses={
        **answers(queries.SqlResult),
        403: {"description": "SQL is disabled; see `sql.enabled`."},
        409: {"description": "Another query is running."},
    },
)
def sql(request: Request, query: SqlQuery, run: RunParameter = None) -> Response:
    """Run one SELECT on a copy of a run; disabled unless `sql.enabled` is set."""
    settings = services_of(request).settings.sql
    if not settings.enabled:
        raise HTTPException(
            403, "SQL is disabled on this server: start it with `rl-insight server start sql.enabled=true`."
        )
    limits = queries.SqlLimits(
        timeout_s=query.timeout_s,
        max_rows=query.max_rows,
        max_answer_bytes=settings.max_answer_bytes,
        memory_bytes=settings.memory_bytes,
        max_run_bytes=settings.max_run_bytes,
    )
    with opened(request, run) as store:
        return Response(queries.run_sql(store, query.sql, limits), media_type="application/json")
