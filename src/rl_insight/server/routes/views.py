"""Saved views of the page, and pinned metrics."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import Field

from rl_insight.server.http.answers import StrictBody, answers, json_answer, services_of
from rl_insight.server.saved_views import SavedViews

router = APIRouter(prefix="/api/v1", tags=["views"])


class ViewChange(StrictBody):
    """A view to save; an empty address removes the view of that name."""

    name: str = Field(max_length=1000)
    address: str = Field(default="", max_length=100_000)


@router.get("/views", responses=answers(SavedViews))
def saved_views(request: Request) -> Response:
    """Return the saved views and pinned metrics of this server."""
    return json_answer(services_of(request).views.saved)


@router.post("/views", responses=answers(SavedViews, "The saved views and pinned metrics."))
def save_view(request: Request, view: ViewChange) -> Response:
    """Save the address of a view under a name, for all users of this server."""
    return json_answer(services_of(request).views.save(view.name, view.address))


@router.post("/views/pins", responses=answers(SavedViews, "The saved views and pinned metrics."))
def pin_metric(
    request: Request, metric: Annotated[str, Query(min_length=1, max_length=1000)], pinned: bool = True
) -> Response:
    """Pin or unpin a metric: *Metrics* shows pinned ones first."""
    return json_answer(services_of(request).views.pin(metric, pinned=pinned))
