"""Views of the page that people saved, and the metrics they pinned."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from rl_insight.server.http.answers import answers, json_answer, services_of
from rl_insight.server.saved_views import SavedViews

router = APIRouter(prefix="/api/v1", tags=["views"])


class ViewChange(BaseModel):
    """A view to save; an empty address removes the one of that name."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=1000)
    address: str = Field(default="", max_length=100_000)


@router.get("/views", responses=answers(SavedViews))
def saved_views(request: Request) -> Response:
    """Show the views that were saved on this server, and the pinned metrics."""
    return json_answer(services_of(request).views.saved)


@router.post("/views", responses=answers(SavedViews, "What is saved now."))
def save_view(request: Request, view: ViewChange) -> Response:
    """Save the address of a view under a name, for everyone who uses this server."""
    return json_answer(services_of(request).views.save(view.name, view.address))


@router.post("/views/pins", responses=answers(SavedViews, "What is saved now."))
def pin_metric(
    request: Request, metric: Annotated[str, Query(min_length=1, max_length=1000)], pinned: bool = True
) -> Response:
    """Pin a metric, or unpin it: *Metrics* begins with the pinned ones."""
    return json_answer(services_of(request).views.pin(metric, pinned=pinned))
