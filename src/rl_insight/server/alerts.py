"""Notifications about findings: when they open and when they are resolved; retried, and never blocking."""

from __future__ import annotations

import logging
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import msgspec

from rl_insight.backoff import Backoff
from rl_insight.errors import InsightError
from rl_insight.http_client import HttpError, request
from rl_insight.schema.names import SEVERITIES
from rl_insight.server.config import AlertSettings
from rl_insight.store.queries import Finding

logger = logging.getLogger(__name__)

_WAITING = 1_000
_TIMEOUT_S = 10.0
_RETRIES = 4
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 10.0
_ICONS = {"opened": ":red_circle:", "resolved": ":large_green_circle:"}


class Alert(msgspec.Struct, frozen=True):
    """The payload of a webhook or command."""

    event: str
    """`opened` or `resolved`."""
    run_id: str
    link: str
    finding: Finding


class Alerts:
    """A bounded queue of alerts, and the thread that delivers them."""

    def __init__(self, settings: AlertSettings, link: str = "", pause_s: float = _FIRST_PAUSE_S) -> None:
        self._settings = settings
        self._pause_s = pause_s
        self._link = settings.link or link
        self._waiting: queue.SimpleQueue[Alert | None] = queue.SimpleQueue()
        """Bounded by `send`, so that the None that ends the thread always fits."""
        self._stop = threading.Event()
        self._stop_by_s = 0.0
        self.delivered = 0
        self.failed = 0
        """Deliveries that failed even after retries, or did not finish before the server stopped."""
        self.postponed = 0
        """Alerts that were not accepted because the queue was full; diagnosis sends them again."""
        self._thread: threading.Thread | None = None
        if settings.webhook or settings.slack or settings.command:
            self._thread = threading.Thread(target=self._deliver_all, name="rl-insight-alerts", daemon=True)
            self._thread.start()

    def send(self, run_id: str, finding: Finding, event: str) -> bool:
        """Queue an alert without blocking; return False if it was not accepted and has to be sent again later."""
        if self._stop.is_set():
            return False
        if self._waiting.qsize() >= _WAITING:
            if not self.postponed:
                logger.warning("%d alerts wait for delivery: further ones are postponed", _WAITING)
            self.postponed += 1
            return False
        base = self._link.rstrip("/")
        link = f"{base}/?run={quote(run_id, safe='')}#/findings?finding={quote(finding.finding_id, safe='')}"
        self._waiting.put(Alert(event, run_id, link if base else "", finding))
        return True

    def counts(self) -> dict[str, int]:
        """Return the number of deliveries and postponed alerts so far, by result."""
        return {"delivered": self.delivered, "failed": self.failed, "postponed": self.postponed}

    def are_wanted(self, finding: Finding) -> bool:
        """Return whether the settings ask for alerts about a finding."""
        settings = self._settings
        if self._thread is None:
            return False
        if settings.rules and finding.rule not in settings.rules:
            return False
        return SEVERITIES.index(finding.severity) >= SEVERITIES.index(settings.severity)

    def close(self, timeout_s: float = 2.0) -> None:
        """Deliver queued alerts for up to `timeout_s`; idempotent."""
        if self._thread is None or self._stop.is_set():
            return
        self._stop_by_s = time.monotonic() + timeout_s
        self._stop.set()
        self._waiting.put(None)
        self._thread.join(timeout_s)

    def _deliver_all(self) -> None:
        while (alert := self._waiting.get()) is not None:
            if self._stop.is_set() and time.monotonic() >= self._stop_by_s:
                left = self._waiting.qsize()  # this one, and the others without the None at the end
                self.failed += left
                logger.warning("stopped before %d alerts were delivered", left)
                return
            settings = self._settings
            self._try("alerts.webhook", _post, settings.webhook, msgspec.json.encode, alert)
            self._try("alerts.slack", _post, settings.slack, _slack_body, alert)
            self._try("alerts.command", _run, settings.command, msgspec.json.encode, alert)

    def _try(
        self,
        name: str,
        deliver: Callable[[str, bytes], None],
        receiver: str | None,
        encode: Callable[[Alert], bytes],
        alert: Alert,
    ) -> None:
        if not receiver:
            return
        backoff = Backoff(self._pause_s, _LONGEST_PAUSE_S)
        for attempt in range(1 + _RETRIES):
            try:
                deliver(receiver, encode(alert))
            except Exception as error:  # noqa: BLE001  (one alert must not end the delivery of the others)
                if attempt == _RETRIES or self._stop.wait(backoff.next_s()):
                    self.failed += 1
                    # Messages of other errors may contain the receiver's URL, which may contain a secret.
                    reason = error if isinstance(error, _EXPECTED) else type(error).__name__
                    logger.warning("cannot deliver an alert to %s: %s", name, reason)
                    return
            else:
                self.delivered += 1
                return


class _DeliveryError(InsightError):
    """A receiver does not answer, or refuses the alert. The message omits its URL, which may contain a secret."""


_EXPECTED = (_DeliveryError, OSError, subprocess.SubprocessError)


def _post(url: str, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    try:
        reply = request("POST", url, body, headers=headers, timeout_s=_TIMEOUT_S, proxies=True)
    except HttpError as error:
        raise _DeliveryError(f"it does not answer: {error.reason}.") from error
    if not reply.is_success:
        raise _DeliveryError(f"it answered {reply.status}: {reply.sentence}")


def _slack_body(alert: Alert) -> bytes:
    finding = alert.finding
    text: dict[str, Any] = {
        "text": f"{_ICONS[alert.event]} *{alert.run_id}* {finding.severity} {alert.event}: {finding.title}"
        + (f"\n{finding.remedy}" if alert.event == "opened" else "")
        + (f"\n<{alert.link}|Open the finding>" if alert.link else "")
    }
    return msgspec.json.encode(text)


def _run(command: str, body: bytes) -> None:
    # The command is from the server's configuration.
    subprocess.run(command, shell=True, input=body, timeout=_TIMEOUT_S, check=True, capture_output=True)  # noqa: S602
