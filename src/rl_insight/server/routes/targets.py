"""Registered scrape targets."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import Field, model_validator

from rl_insight.server.http.answers import StrictBody, services_of
from rl_insight.server.scrape.targets import MAX_TARGETS, make_targets, target_url

router = APIRouter(prefix="/api/v1/targets", tags=["targets"])

_BAD: dict[int | str, dict[str, Any]] = {400: {"description": "Invalid address or labels."}}


class Registration(StrictBody):
    """Targets to scrape."""

    addresses: list[str] = Field(
        max_length=MAX_TARGETS,
        description="`host:port` or URLs; empty to remove all targets of an owner.",
    )
    job_name: str | None = Field(default=None, description="The label `job` of their metrics.")
    labels: dict[str, str] | list[dict[str, str]] | None = Field(
        default=None, description="One set for all addresses, or one per address."
    )
    run_id: str | None = Field(
        default=None, description="The run that stores their metrics; without one, only their health is checked."
    )
    project: str = ""
    experiment_name: str = ""
    owner: str = Field(
        default="",
        max_length=500,
        description="A program that registers itself: these addresses replace all that it registered before.",
    )
    lease_s: float = Field(
        default=0.0,
        ge=0.0,
        le=86_400.0,
        description="Removed if not registered again within this time; 0 keeps it.",
    )
    forwards: bool = Field(
        default=False, description="It also sends its metrics here as batches: only its own health is stored."
    )

    @model_validator(mode="after")
    def _names_something(self) -> Registration:
        if not self.addresses and not self.owner:
            raise ValueError("give at least one address")
        return self


@router.get("")
def list_targets(request: Request) -> JSONResponse:
    """List the targets and the result of their last scrape."""
    services = services_of(request)
    health = services.scraper.health()
    found = [
        {**msgspec.to_builtins(target), "health": msgspec.to_builtins(health.get(target.url))}
        for target in services.targets.list()
    ]
    return JSONResponse({"targets": found})


@router.post("", responses=_BAD)
def add_targets(request: Request, registration: Registration) -> JSONResponse:
    """Register targets; they survive restarts, and a known target is replaced.

    A program that registers itself, as Ray hubs do, sets `owner` and a lease, and registers again well before the
    lease expires.
    """
    services = services_of(request)
    added = services.targets.add(make_targets(**registration.model_dump(exclude={"owner"})), registration.owner)
    return JSONResponse({"added": added, "targets": len(services.targets.list())})


@router.delete("", responses=_BAD)
def remove_targets(
    request: Request,
    address: Annotated[list[str], Query(min_length=1, description="`host:port` or URLs.")],
) -> JSONResponse:
    """Remove targets."""
    return JSONResponse({"removed": services_of(request).targets.remove([target_url(entry) for entry in address])})
