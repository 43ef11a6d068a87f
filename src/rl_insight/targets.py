"""Registers Prometheus endpoints with the server, from a training process."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rl_insight.backoff import Backoff
from rl_insight.config import InsightConfig, load_config
from rl_insight.config.paths import find_server
from rl_insight.http_client import request
from rl_insight.recorder.propagation import INHERIT_VARIABLE
from rl_insight.transport.ingest_client import TARGETS_PATH
from rl_insight.urls import without_credentials
from rl_insight.waiting import wait_for

logger = logging.getLogger("rl_insight")

_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_INIT_WAIT_S = 10.0
_LEASE_S = 600.0
"""The server drops a target that it could not read for this long, because a stopped engine cannot deregister."""
_JSON = {"Content-Type": "application/json"}


def update_prometheus_config(
    *arguments: Any,
    server_addresses: Sequence[str] | str | None = None,
    job_name: str | None = None,
    labels: Mapping[str, str] | Sequence[Mapping[str, str] | None] | None = None,
    config: Any = None,
    run_id: str | None = None,
) -> threading.Thread | None:
    """Register metrics endpoints, such as those of inference engines, for the server to scrape from now on.

    Returns at once; a background thread contacts the server and logs a warning if that fails.

    >>> import rl_insight as insight
    >>> insight.update_prometheus_config(["node7:8000", "node8:8000"], "vllm", {"role": "rollout"})  # doctest: +SKIP

    Args:
        *arguments: `server_addresses`, `job_name` and `labels` by position; a configuration may precede them, as in
            older versions.
        server_addresses: each ``host:port`` or a URL.
        job_name: the kind of endpoint; attached to its metrics as `job`.
        labels: one mapping for all, or a list with a mapping or None for each address.
        config: as for `init`; it contains the server's address.
        run_id: the run that the metrics belong to; by default that of `init`, which may be called shortly afterwards.

    Returns:
        The background thread, for callers that want to join it; None, with a warning, if there are no addresses.

    Raises:
        ValueError: an address is not a string, a list of labels has the wrong length, or the configuration is invalid.
        TypeError: the arguments fit neither form.
    """
    given = list(arguments)
    if given and not _are_addresses(given[0]):
        if config is not None:
            raise TypeError("update_prometheus_config() got two configurations: the first argument and config=.")
        config = given.pop(0)
    named = {"server_addresses": server_addresses, "job_name": job_name, "labels": labels}
    if len(given) > len(named):
        raise TypeError("update_prometheus_config() takes server_addresses, job_name and labels by position.")
    for name, value in zip(named, given, strict=False):
        if named[name] is not None:
            raise TypeError(f"update_prometheus_config() got {name} twice.")
        named[name] = value
    if not named["server_addresses"]:
        logger.warning("update_prometheus_config() got no address: nothing is registered.")
        return None
    settings = load_config(config)
    registration = _registration(**named)
    registration["run_id"] = run_id or settings.run_id
    registration["project"] = settings.project or ""
    registration["experiment_name"] = settings.experiment_name or ""
    thread = threading.Thread(target=_register, args=(settings, registration), name="rl-insight-targets", daemon=True)
    thread.start()
    return thread


def _are_addresses(value: Any) -> bool:
    return value is None or isinstance(value, (str, list, tuple, set, frozenset))


def _registration(server_addresses: Any, job_name: Any, labels: Any) -> dict[str, Any]:
    addresses = [server_addresses] if isinstance(server_addresses, str) else list(server_addresses or ())
    if not all(isinstance(address, str) and address for address in addresses):
        raise ValueError("server_addresses must be strings such as 'host:port' or 'http://host:port/metrics'.")
    if labels is None or isinstance(labels, Mapping):
        plain: Any = _string_labels(labels or {})
    else:
        plain = [_string_labels(own or {}) for own in labels]
        if len(plain) != len(addresses):
            raise ValueError(
                f"labels has {len(plain)} entries for {len(addresses)} addresses: give one mapping, or a list of the "
                "same length."
            )
    return {"addresses": addresses, "job_name": None if job_name is None else str(job_name), "labels": plain}


def _string_labels(labels: Mapping[Any, Any]) -> dict[str, str]:
    return {str(key): str(value) for key, value in labels.items()}


def _register(settings: InsightConfig, registration: dict[str, Any]) -> None:
    """Send a registration, with retries: training often starts together with its server."""
    if registration["run_id"] is None:
        registration |= _run_of_this_process()
    registration["lease_s"] = _LEASE_S
    backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
    shown = ", ".join(registration["addresses"][:3])
    for attempt in range(_ATTEMPTS):
        server = find_server(settings.server.url, settings.server.token)
        try:
            if server is None:
                problem = "no server is known. Start one with `rl-insight server start`, or set RL_INSIGHT_SERVER_URL"
            else:
                body = msgspec.json.encode(registration)
                url = server.url.rstrip("/") + TARGETS_PATH
                reply = request("POST", url, body, headers=_JSON, token=server.token, trust=server.tls_cert)
                if reply.is_success:
                    return
                problem = f"{without_credentials(server.url)} answered {reply.status}: {reply.sentence}"
                if 400 <= reply.status < 500 and reply.status not in {408, 429}:
                    break
        except Exception as error:  # noqa: BLE001 -- training continues regardless
            problem = str(error) or type(error).__name__
        if attempt + 1 < _ATTEMPTS:
            time.sleep(backoff.next_s())
    logger.warning("RL-Insight is not collecting the metrics of %s: %s.", shown, problem.rstrip("."))


def _run_of_this_process() -> dict[str, Any]:
    """Return the run started by `init`; wait for it briefly, because frameworks register their engines first."""
    inherited = wait_for(lambda: os.environ.get(INHERIT_VARIABLE), _INIT_WAIT_S, 0.2)
    if not inherited:
        return {}
    run = msgspec.json.decode(inherited)
    known = {name: run.get(name) for name in ("run_id", "project", "experiment_name")}
    return {name: value for name, value in known.items() if value}
