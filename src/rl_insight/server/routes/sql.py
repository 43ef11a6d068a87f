"""SQL for people who want to ask the store themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from rl_insight.server.http.answers import RunParameter, answers, json_answer, reading
from rl_insight.store import queries
from rl_insight.store.queries.sql import MAX_TEXT

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1", tags=["sql"])


class SqlQuery(BaseModel):
    """One SELECT."""

    model_config = ConfigDict(extra="forbid")

    sql: str = Field(max_length=MAX_TEXT)
    timeout_s: float = Field(default=10.0, gt=0, le=60)
    max_rows: int = Field(default=10_000, ge=1, le=100_000)


@router.post("/sql", responses={**answers(queries.SqlResult), 403: {"description": "SQL is off; see `sql.enabled`."}})
def sql(request: Request, query: SqlQuery, run: RunParameter = None) -> Response:
    """Run one read-only SELECT on a run; off by default beyond loopback."""
    services: Services = request.app.state.services
    if not services.settings.is_sql_enabled:
        raise HTTPException(403, "SQL is off on this server: start it with sql.enabled=true to allow it.")
    with reading(request, run) as cursor:
        return json_answer(queries.run_sql(cursor, query.sql, timeout_s=query.timeout_s, max_rows=query.max_rows))
