"""A collector's own `/metrics` among the scrape targets of a server, for as long as the collector lives."""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec

from rl_insight.backoff import Backoff
from rl_insight.transport.ingest_client import IngestClient

logger = logging.getLogger("rl_insight")

LEASE_S = 60.0
"""The server forgets a hub that it has not heard of for so long: one that was killed cannot say goodbye."""
RENEW_S = 10.0
"""A server that lost its list, or moved, knows the hub again after this time at the latest."""
_FIRST_RETRY_S = 0.5


class HubTarget(msgspec.Struct, frozen=True):
    """What the server knows about a hub."""

    address: str
    """Where it serves `/metrics`, as ``host:port``."""
    job_name: str
    owner: str
    """The hub itself, wherever it runs: its next registration takes the place of the one before."""
    labels: dict[str, str]
    run_id: str
    project: str
    experiment_name: str
    lease_s: float = LEASE_S
    forwards: bool = True
    """The hub sends the batches too, so the server reads only the hub's own health."""


class TargetRegistration:
    """Registers a hub with the server, and again and again, on a dedicated thread.

    Whatever goes wrong is counted and tried again without effect on anything else.

    Args:
        client: a dedicated connection to the server's list of targets.
        target: what to register.
        renew_s: the time between two registrations.
    """

    def __init__(self, client: IngestClient, target: HubTarget, *, renew_s: float = RENEW_S) -> None:
        self._client = client
        self._target = target
        self._renew_s = renew_s
        self._changed = threading.Condition()
        self._wanted = True
        self._is_registered: bool | None = None
        """As the server has it; None while that is not known."""
        self._renewals = self._failures = 0
        self._backoff = Backoff(min(_FIRST_RETRY_S, renew_s), renew_s)
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="rl-insight-registration", daemon=True)
        self._thread.start()

    def leave(self, timeout_s: float) -> bool:
        """Have the server forget the hub; True when it did in time."""
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
        """Return whether the server knows the hub, and what went wrong."""
        with self._changed:
            return {
                "name": self._target.job_name,
                "address": self._target.address,
                "is_registered": bool(self._is_registered),
                "renewals": self._renewals,
                "failures": self._failures,
                "last_error": self._last_error,
            }

    def _run(self) -> None:
        while True:
            with self._changed:
                wanted = self._wanted
            problem = self._tell(wanted=wanted)
            self._note(problem, wanted=wanted)
            pause_s = self._backoff.next_s() if problem else self._renew_s if wanted else None
            with self._changed:
                self._changed.wait_for(lambda: self._wanted != wanted, pause_s)  # noqa: B023 -- called in this iteration

    def _tell(self, *, wanted: bool) -> str | None:
        """Send one registration; returns what went wrong."""
        known = msgspec.to_builtins(self._target)
        address = known.pop("address")
        known["addresses"] = [address] if wanted else []
        try:
            answer = self._client.post(msgspec.json.encode(known))
        except Exception as error:  # noqa: BLE001 -- whatever goes wrong here, the hub continues
            self._client.close()
            return str(error) or type(error).__name__
        return None if 200 <= answer.status < 300 else f"it answered {answer.status}: {answer.sentence}"

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
                # What was registered may or may not be there still: the next answer tells.
                self._is_registered = None
            self._changed.notify_all()
        if first:
            logger.warning(
                "the hub %s is not on the server's list of targets: %s. It is tried again; nothing else is affected.",
                self._target.job_name,
                problem,
            )
