"""Keeps a hub's `/metrics` registered as a scrape target of the server while the hub is running."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec

from rl_insight.backoff import Backoff
from rl_insight.transport.ingest_client import IngestClient

logger = logging.getLogger("rl_insight")

LEASE_S = 60.0
"""The server drops a hub after this long without a renewal, because a killed hub cannot deregister."""
RENEW_S = 10.0
"""A server that lost its targets, or moved, gets the hub's registration again within this time."""
_FIRST_RETRY_S = 0.5


class HubTarget(msgspec.Struct, frozen=True):
    """The registration of a hub."""

    addresses: list[str]
    """Where it serves `/metrics`, as ``host:port``; none to deregister."""
    job_name: str
    owner: str
    """Identifies the hub across restarts: a new registration replaces its previous one."""
    labels: dict[str, str]
    run_id: str
    project: str
    experiment_name: str
    lease_s: float = LEASE_S
    forwards: bool = True
    """The hub also forwards the batches, so the server only scrapes the hub's health."""


class TargetRegistration:
    """Registers a hub with the server and renews the registration, on a dedicated thread.

    Failures are counted and retried, without affecting anything else.

    Args:
        client: a dedicated connection to the server's targets route.
        target: the registration.
        renew_s: the renewal interval.
    """

    def __init__(self, client: IngestClient, target: HubTarget, *, renew_s: float = RENEW_S) -> None:
        self._client = client
        self._target = target
        self._renew_s = renew_s
        self._changed = threading.Condition()
        self._wanted = True
        self._is_registered: bool | None = None
        """The state at the server; None if unknown."""
        self._renewals = self._failures = 0
        self._backoff = Backoff(min(_FIRST_RETRY_S, renew_s), renew_s)
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="rl-insight-registration", daemon=True)
        self._thread.start()

    def leave(self, timeout_s: float) -> bool:
        """Deregister the hub; True if that succeeded in time."""
        with self._changed:
            self._wanted = False
            self._changed.notify_all()
            return self._changed.wait_for(lambda: self._is_registered is False, timeout_s)

    def stay(self) -> None:
        """Register again after a `leave`."""
        with self._changed:
            if not self._wanted:
                self._wanted = True
                self._changed.notify_all()

    def get_status(self) -> dict[str, Any]:
        """Return the state of the registration, and the last error."""
        with self._changed:
            return {
                "name": self._target.job_name,
                "address": self._target.addresses[0],
                "is_registered": bool(self._is_registered),
                "renewals": self._renewals,
                "failures": self._failures,
                "last_error": self._last_error,
            }

    def _run(self) -> None:
        while True:
            with self._changed:
                wanted = self._wanted
            problem = self._post(wanted=wanted)
            self._note(problem, wanted=wanted)
            pause_s = self._backoff.next_s() if problem else self._renew_s if wanted else None
            with self._changed:
                self._changed.wait_for(lambda: self._wanted != wanted, pause_s)  # noqa: B023 -- called in this iteration

    def _post(self, *, wanted: bool) -> str | None:
        """Send one registration; return the error, if any."""
        target = self._target if wanted else msgspec.structs.replace(self._target, addresses=[])
        try:
            answer = self._client.post(msgspec.json.encode(target))
        except Exception as error:  # noqa: BLE001 -- the hub continues without a registration
            self._client.close()
            return str(error) or type(error).__name__
        return None if 200 <= answer.status < 300 else f"the server answered {answer.status}: {answer.sentence}"

    def _note(self, problem: str | None, *, wanted: bool) -> None:
        with self._changed:
            first = problem is not None and self._last_error is None
            self._last_error = problem
            if problem is None:
                self._backoff.reset()
                self._is_registered = wanted
                self._renewals += wanted
            else:
                self._failures += 1
                # The registration may or may not exist: the next response decides.
                self._is_registered = None
            self._changed.notify_all()
        if first:
            logger.warning(
                "cannot register the hub %s as a scrape target: %s. Retrying; nothing else is affected.",
                self._target.job_name,
                problem,
            )
