"""Registered scrape targets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl_insight.server.http.answers import services_of
from rl_insight.server.scrape.targets import MAX_TARGETS, make_targets, target_url

if TYPE_CHECKING:
    from rl_insight.server.services import Services

router = APIRouter(prefix="/api/v1/targets", tags=["targets"])

_BAD: dict[int | str, dict[str, Any]] = {400: {"description": "An address is not a target, or the labels do not fit."}}


class Registration(BaseModel):
    """Targets to read from now on."""

    model_config = ConfigDict(extra="forbid")

    addresses: list[str] = Field(
        max_length=MAX_TARGETS,
        description="`host:port`, or whole URLs; empty when an owner takes back all its targets.",
    )
    job_name: str | None = Field(default=None, description="What they are; the label `job` of their metrics.")
    labels: dict[str, str] | list[dict[str, str]] | None = Field(
        default=None, description="One set for all, or one for each address."
    )
    run_id: str | None = Field(
        default=None, description="The run that stores their metrics; without one only their health is read."
    )
    project: str = ""
    experiment_name: str = ""
    owner: str = Field(
        default="",
        max_length=500,
        description="Who registers itself: the addresses take the place of all that it registered before.",
    )
    lease_s: float = Field(
        default=0.0,
        ge=0.0,
        le=86_400.0,
        description="Forgotten when it is not registered again for so long; 0 keeps it.",
    )
    forwards: bool = Field(
        default=False, description="It sends its metrics here as batches too: only its own health is read."
    )

    @model_validator(mode="after")
    def _names_something(self) -> Registration:
        if not self.addresses and not self.owner:
            raise ValueError("give at least one address")
        return self


@router.get("")
def list_targets(request: Request) -> JSONResponse:
    """List the targets and how their last reading went."""
    return JSONResponse({"targets": _described(services_of(request))})


@router.post("", responses=_BAD)
def add_targets(request: Request, registration: Registration) -> JSONResponse:
    """Register targets; they are kept across restarts. One that is known is replaced.

    A program that registers itself, as Ray hubs do, names itself as `owner`, asks for a lease, and registers again
    well before the lease is over.
    """
    services = services_of(request)
    added = services.targets.add(
        make_targets(
            registration.addresses,
            job_name=registration.job_name,
            labels=registration.labels,
            run_id=registration.run_id,
            project=registration.project,
            experiment_name=registration.experiment_name,
            lease_s=registration.lease_s,
            forwards=registration.forwards,
        ),
        registration.owner,
    )
    return JSONResponse({"added": added, "targets": len(services.targets.list())})


@router.delete("", responses=_BAD)
def remove_targets(
    request: Request,
    address: Annotated[list[str], Query(min_length=1, description="`host:port`, or whole URLs.")],
) -> JSONResponse:
    """Forget targets."""
    return JSONResponse({"removed": services_of(request).targets.remove([target_url(entry) for entry in address])})


def _described(services: Services) -> list[dict[str, Any]]:
    health = services.scraper.health()
    return [
        {**msgspec.to_builtins(target), "health": msgspec.to_builtins(health.get(target.url))}
        for target in services.targets.list()
    ]
