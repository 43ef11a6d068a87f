"""Responses of the query routes: structs as JSON, described in the OpenAPI document by the same structs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from fastapi import Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.errors import RunNotFoundError
from rl_insight.store.queries import Cursor
from rl_insight.store.queries.base import INTEGER_LIMIT

if TYPE_CHECKING:
    from rl_insight.server.services import Services
    from rl_insight.store.run_store import RunStore


class StrictBody(BaseModel):
    """A JSON body without unknown fields."""

    model_config = ConfigDict(extra="forbid")


_REFERENCE = "#/components/schemas/{name}"
_components: dict[str, Any] = {}
_encode = msgspec.json.Encoder().encode

RunParameter = Annotated[
    str | None, Query(alias="run", max_length=500, description="The run; default the most recent.")
]
TIME: Final[dict[str, Any]] = {"ge": 0, "lt": LAST_TIME_NS, "description": "Nanoseconds since 1970."}
STEP: Final[dict[str, Any]] = {"gt": -INTEGER_LIMIT, "lt": INTEGER_LIMIT, "description": "A training step."}
"""The limits of a parameter that is a time or a step."""
TimeParameter = Annotated[int | None, Query(**TIME)]
StepParameter = Annotated[int | None, Query(**STEP)]
TextParameter = Annotated[str | None, Query(max_length=1000)]


def answers(kind: Any, description: str = "The answer.") -> dict[int | str, dict[str, Any]]:
    """Describe a route's response in the OpenAPI document: a struct, or a list of structs."""
    (schema,), components = msgspec.json.schema_components((kind,), ref_template=_REFERENCE)
    _components.update(components)
    error = {"application/json": {"schema": {"type": "object", "properties": {"error": {"type": "string"}}}}}
    return {
        200: {"description": description, "content": {"application/json": {"schema": schema}}},
        400: {"description": "Invalid query; `error` has the reason.", "content": error},
        404: {"description": "There is no such run, or no such id in it.", "content": error},
    }


def add_components(document: dict[str, Any], *more: type[msgspec.Struct]) -> dict[str, Any]:
    """Add the structs used by `answers`, and `more`, to an OpenAPI document."""
    _, components = msgspec.json.schema_components(more, ref_template=_REFERENCE)
    document.setdefault("components", {}).setdefault("schemas", {}).update(_components | components)
    return document


def json_answer(value: Any) -> Response:
    """Return a struct, or a list of them, as JSON."""
    return Response(_encode(value), media_type="application/json")


def services_of(request: Request) -> Services:
    """Return the parts of the server."""
    services: Services = request.app.state.services
    return services


@contextmanager
def reading(request: Request, run: str | None) -> Iterator[Cursor]:
    """Lend a cursor on a run, by default the most recent one."""
    with opened(request, run) as store, store.reader() as cursor:
        yield cursor


def opened(request: Request, run: str | None) -> AbstractContextManager[RunStore]:
    """Lend a run, by default the most recent one."""
    return services_of(request).runs.open(run_of(request, run))


def run_of(request: Request, run: str | None) -> str:
    """Return the requested run; by default the most recent one, preferably not one with scraped metrics only."""
    if run is not None:
        return run
    for info in services_of(request).runs.list_runs():
        if not info.problem:
            return info.run_id
    raise RunNotFoundError("there are no runs yet. Point a training job at this server and call rl_insight.init().")
