"""Routes for clients of rl-insight 0.3.0: the server's ports, and registration of scrape targets."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rl_insight.errors import ConfigError
from rl_insight.otlp.decode.experiments import experiment_of, run_of_day
from rl_insight.schema.names import TRAINER_JOB
from rl_insight.server.http.answers import services_of
from rl_insight.server.scrape.targets import Target, make_targets
from rl_insight.stack.state import read_state

router = APIRouter(prefix="/api/v1", tags=["clients of 0.3.0"])

_LEASE_S = 600.0
"""These clients cannot deregister: a target that could not be scraped for this long is removed."""
_BAD: dict[int | str, dict[str, Any]] = {400: {"description": "Invalid `targets` or `labels`."}}


class ClientTargets(BaseModel):
    """A registration by a client of 0.3.0."""

    job_name: str | None = Field(default=None, description="Default `trainer_metrics`.")
    labels: Any = Field(default=None, description="An object: labels for all targets.")
    targets: Any = Field(default=None, description="`host:port`, or objects with `target` and `labels`.")
    project: str | None = None
    experiment_name: str | None = None
    run_id: str | None = Field(
        default=None,
        description="The run that stores their metrics, empty for none; default the run of the experiment's spans.",
    )


@router.get("/services")
def list_services(request: Request) -> JSONResponse:
    """Return the ports of this server's services; null for those that do not run here."""
    services = services_of(request)
    stack = read_state(services.settings.directory / "stack")
    running = {one.name: urlsplit(one.url).port for one in (stack.services if stack else []) if one.state == "running"}
    ports = {f"{name}_port": running.get(name) for name in ("prometheus", "grafana")}
    return JSONResponse({"status": "ok", "otlp_port": services.otlp_port or request.url.port, **ports})


@router.post("/prometheus/targets", responses=_BAD)
def add_client_targets(request: Request, registration: ClientTargets) -> JSONResponse:
    """Register targets to scrape; by default their metrics are stored in the run of their experiment's spans."""
    services = services_of(request)
    named = experiment_of(registration.project or "", registration.experiment_name or "")
    run_id, host = registration.run_id, ""
    if run_id is None:
        run_id = run_of_day(services.settings.namespace, named) if all(named) else ""
        host = "" if all(named) else request.client.host if request.client else "unknown"
    try:
        targets = _targets(registration, run_id, host)
    except ConfigError as error:
        return JSONResponse({"detail": str(error)}, status_code=400)
    services.targets.add(targets)
    services.show_targets()
    job = targets[0].job_name
    return JSONResponse(
        {
            "status": "ok",
            "prometheus_reloaded": True,
            "job_name": job,
            "target_count": sum(known.job_name == job for known in services.targets.list()),
            "config_file": "",
            "targets_file": str(services.clients_file),
        }
    )


def _targets(registration: ClientTargets, run_id: str, client_host: str) -> list[Target]:
    given, common = registration.targets, registration.labels
    if not isinstance(given, list) or not given:
        raise ConfigError("targets must be a list with at least one entry.")
    if common is not None and not isinstance(common, dict):
        raise ConfigError("labels must be an object.")
    found = [entry if isinstance(entry, dict) else {"target": entry} for entry in given]
    addresses: list[Any] = [entry.get("target") for entry in found]
    if not all(isinstance(address, str) for address in addresses):
        raise ConfigError("each target must be a string such as 'host:port', or an object with `target`.")
    labels = [entry.get("labels") or {} for entry in found]
    if not all(isinstance(own, dict) for own in labels):
        raise ConfigError("the labels of a target must be an object.")
    return make_targets(
        addresses,
        job_name=registration.job_name or TRAINER_JOB,
        labels=[{**(common or {}), **own} for own in labels],
        run_id=run_id,
        project=registration.project or "",
        experiment_name=registration.experiment_name or "",
        lease_s=_LEASE_S,
        is_client=True,
        client_host=client_host,
    )
