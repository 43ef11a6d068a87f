"""Batches to a server over HTTP, through a spool on the local disk."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import importlib.util
import logging
import os
import random
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from rl_insight.errors import ConfigError
from rl_insight.transport._disk import file_name
from rl_insight.transport._http_client import Answer, IngestClient
from rl_insight.transport.base import Transport
from rl_insight.transport.spool import Spool, Waiting, adopt_orphans
from rl_insight.urls import without_credentials

logger = logging.getLogger("rl_insight")

MAX_REQUEST_BYTES: Final = 1_000_000
MAX_REQUEST_BATCHES: Final = 32
COMPRESS_FROM_BYTES: Final = 16 * 1024
CLOSE_TIMEOUT_S: Final = 1.0
COMPRESSIONS: Final = ("auto", "none", "gzip", "zstd")

_REFUSED: Final = frozenset({400, 413, 415, 422})
"""The server will not take this request, however often it comes."""
_BUSY: Final = frozenset({408, 425, 429})
"""As any 5xx: the server will take it later."""


class _Pause(NamedTuple):
    """How long to wait before the next request."""

    seconds: float
    asked: bool = False
    """The server asked for it, so that not even a `flush` cuts it short."""


class HttpTransport(Transport):
    """Writes each batch to a spool first; one thread posts them and deletes what the server has taken.

    `send` costs one small file, whatever the server does. Batches that a process leaves behind, killed or not, are
    adopted by the next transport on this machine that has the same URL.

    >>> transport = HttpTransport("http://127.0.0.1:18080", process_id="node7-4711-9f3a2c1d")
    >>> transport.get_status()["waiting_batches"]
    0
    >>> transport.close()
    """

    def __init__(
        self,
        url: str,
        *,
        process_id: str,
        token: str | None = None,
        timeout_s: float = 10.0,
        compression: str = "auto",
        spool_dir: str | os.PathLike[str] | None = None,
        spool_max_bytes: int = 256 * 1024 * 1024,
        retry_initial_s: float = 0.2,
        retry_max_s: float = 10.0,
        adopt_interval_s: float = 30.0,
        ca_file: str | None = None,
    ) -> None:
        self._client = IngestClient(url, token=token, timeout_s=timeout_s, ca_file=ca_file)
        self.server_url = url
        self._shown_url = without_credentials(url)
        self._compression = _choose_compression(compression, is_loopback=self._client.is_loopback)
        self._retry_initial_s = retry_initial_s
        self._retry_max_s = max(retry_max_s, retry_initial_s)
        self._adopt_interval_s = adopt_interval_s
        self._spool_max_bytes = spool_max_bytes
        self._spool_root = _spool_root(url, spool_dir)
        own = None if self._spool_root is None else self._spool_root / file_name(process_id)
        self._spool = Spool(own, spool_max_bytes)
        self._adopted: list[Spool] = []
        # A generator of its own: training code seeds the global one and relies on its sequence.
        self._random = random.SystemRandom()
        self._changed = threading.Condition()
        self._stopping = False
        self._hurry = False
        self._failures = 0
        self._outage: str | None = None
        self._last_error: str | None = None
        self._warned: set[int] = set()
        self._delivered = self._delivered_bytes = self._retries = self._adopted_batches = 0
        self._thread = threading.Thread(target=self._run, name="rl-insight-http", daemon=True)
        self._thread.start()

    def send(self, payload: bytes) -> None:
        """Put one batch into the spool and wake the sender."""
        if self._stopping:
            self.on_loss("batches", "closed", 1)
            return
        dropped = self._spool.put(payload)
        with self._changed:
            self._changed.notify_all()
        if dropped.batches:
            self.on_loss("batches", "spool_full", dropped.batches)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the server has taken everything; a sender that pauses after a failure tries again at once."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or not len(self._spool), timeout_s)
            self._hurry = False
        return not len(self._spool)

    def close(self) -> None:
        """Stop sending; what is undelivered stays on disk for a later process."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        self._client.interrupt()
        self._thread.join(CLOSE_TIMEOUT_S)
        lost = self._spool.close()
        for spool in self._adopted:
            spool.close()
        if lost.batches:
            self.on_loss("batches", "spool_unavailable", lost.batches)

    def abandon(self) -> None:
        """Close what a forked child inherited; takes no lock and sends nothing."""
        self._stopping = True
        self._changed = threading.Condition()
        self._client.abandon()
        for spool in (self._spool, *self._adopted):
            spool.abandon()

    def get_status(self) -> dict[str, Any]:
        """Tell what was delivered, what waits and where, and the last problem."""
        return {
            "backend": "http",
            "url": self._shown_url,
            "delivered_batches": self._delivered,
            "delivered_bytes": self._delivered_bytes,
            "waiting_batches": len(self._spool) + sum(map(len, self._adopted)),
            "waiting_bytes": self._spool.size_bytes + sum(spool.size_bytes for spool in self._adopted),
            "retries": self._retries,
            "adopted_batches": self._adopted_batches,
            "last_error": self._last_error,
            "spool": self._spool.get_status(),
        }

    def _run(self) -> None:
        """Send until stopped; the only thread that uses the network."""
        self._adopt()
        while not self._stopping:
            try:
                pause = self._send_next()
            except Exception as error:  # noqa: BLE001 a sender that died in silence would be the worst of all
                pause = self._unreachable(error)
            if pause is not None:
                self._wait(pause)
        self._client.close()

    def _send_next(self) -> _Pause | None:
        """Send one request's worth of batches, own ones first; waits for work when there is none."""
        for spool in (self._spool, *self._adopted):
            peeked = spool.peek(MAX_REQUEST_BATCHES, MAX_REQUEST_BYTES)
            if peeked.unreadable:
                self.on_loss("batches", "spool_unreadable", peeked.unreadable)
            if not peeked.waiting:
                continue
            try:
                return self._deliver(spool, peeked.waiting)
            finally:
                spool.release(waiting.number for waiting in peeked.waiting)
        self._close_adopted()
        with self._changed:
            self._changed.notify_all()
            woken = self._changed.wait_for(lambda: self._stopping or len(self._spool) > 0, self._adopt_interval_s)
        if not woken:
            self._adopt()
        return None

    def _deliver(self, spool: Spool, batches: Sequence[Waiting]) -> _Pause | None:
        """Send batches in one request and deal with the answer; returns the pause that is due after a failure."""
        body = b"".join(waiting.frame for waiting in batches)
        encoding = self._compression if len(body) > COMPRESS_FROM_BYTES else None
        try:
            answer = self._client.post(_compress(body, encoding), encoding)
        except (OSError, http.client.HTTPException) as error:
            return self._unreachable(error)
        if 200 <= answer.status < 300 and answer.is_receipt:
            self._taken(spool, batches)
            return None
        if answer.status == 415 and encoding is not None:
            self._compression = None
            return self._deliver(spool, batches)
        if answer.status in _REFUSED:
            return self._refused(spool, batches, answer)
        if answer.status in _BUSY or answer.status >= 500:
            return self._busy(answer)
        return self._misdirected(answer)

    def _taken(self, spool: Spool, batches: Sequence[Waiting]) -> None:
        spool.remove(waiting.number for waiting in batches)
        self._failures = 0
        if self._outage is not None:
            logger.info("RL-Insight server %s takes batches again; %d wait.", self._shown_url, len(self._spool))
            self._outage = None
        with self._changed:
            self._delivered += len(batches)
            self._delivered_bytes += sum(len(waiting.frame) for waiting in batches)
            self._changed.notify_all()

    def _refused(self, spool: Spool, batches: Sequence[Waiting], answer: Answer) -> _Pause | None:
        """Find the batches that the server cannot use, and give up only those."""
        if len(batches) > 1:
            for waiting in batches:
                pause = self._deliver(spool, [waiting])
                if pause is not None:
                    return pause
            return None
        self._last_error = f"{answer.status}: {answer.sentence}"
        if answer.status not in self._warned:
            self._warned.add(answer.status)
            logger.warning(
                "RL-Insight server %s refused a batch (status %d): %s. It is dropped and counted; "
                "use the same version of rl-insight on both ends.",
                self._shown_url,
                answer.status,
                answer.sentence.rstrip("."),
            )
        spool.remove([batches[0].number])
        with self._changed:
            self._changed.notify_all()
        self.on_loss("batches", "refused", 1)
        return None

    def _busy(self, answer: Answer) -> _Pause:
        pause = self._failed(f"it answered {answer.status}: {answer.sentence}")
        if answer.retry_after_s is None:
            return pause
        return _Pause(max(answer.retry_after_s, pause.seconds), asked=True)

    def _misdirected(self, answer: Answer) -> _Pause:
        """The batches are fine but the address or the token is not: wait for someone to put it right."""
        if answer.status in {401, 403}:
            advice = "Set server.token (or RL_INSIGHT_TOKEN) to the server's token"
        else:
            advice = "Check that server.url is the address of an RL-Insight server"
        self._failed(f"it answered {answer.status}: {answer.sentence}", advice)
        return _Pause(self._retry_max_s)

    def _unreachable(self, error: Exception) -> _Pause:
        if self._stopping:
            return _Pause(0.0)
        return self._failed(str(error) or type(error).__name__)

    def _failed(self, problem: str, advice: str = "They are sent when it does") -> _Pause:
        """Note a failure, warn once for each kind of outage, and choose the pause: exponential, with full jitter."""
        self._last_error = problem
        self._retries += 1
        if self._outage != advice:
            self._outage = advice
            logger.warning(
                "RL-Insight server %s does not take batches: %s. Up to %d MiB of them wait in %s. %s.",
                self._shown_url,
                problem.rstrip("."),
                self._spool_max_bytes // 2**20,
                self._spool.directory or "memory",
                advice,
            )
        longest = min(self._retry_max_s, self._retry_initial_s * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        return _Pause(self._random.uniform(self._retry_initial_s, longest))

    def _wait(self, pause: _Pause) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (self._hurry and not pause.asked), pause.seconds)
            self._hurry = False

    def _adopt(self) -> None:
        if self._spool_root is None:
            return
        for spool in adopt_orphans(self._spool_root, self._spool_max_bytes):
            self._adopted_batches += len(spool)
            self._adopted.append(spool)
            logger.info("RL-Insight sends %d batches left by an earlier process in %s.", len(spool), spool.directory)

    def _close_adopted(self) -> None:
        for spool in self._adopted:
            spool.close()
        self._adopted = []


def _spool_root(url: str, spool_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of the spools for a URL; None when the default place belongs to somebody else."""
    name = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
    if spool_dir is not None:
        return Path(spool_dir) / name
    home = Path(tempfile.gettempdir()) / f"rl-insight-{os.geteuid()}"
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        private = not home.is_symlink() and home.stat().st_uid == os.geteuid()
    except OSError:
        # The disk refuses for now; the spool tries again later, in folders that only this user can read.
        private = True
    if private:
        return home / "spool" / name
    logger.warning(
        "RL-Insight keeps undelivered batches in memory: %s belongs to another user. Set http.spool_dir to a folder "
        "of your own.",
        home,
    )
    return None


def _choose_compression(choice: str, *, is_loopback: bool) -> str | None:
    if choice not in COMPRESSIONS:
        raise ConfigError(f"http.compression is {choice!r}. Choose one of: {', '.join(COMPRESSIONS)}.")
    if choice == "none" or (choice == "auto" and is_loopback):
        return None
    has_zstd = importlib.util.find_spec("zstandard") is not None
    if choice == "zstd" and not has_zstd:
        raise ConfigError(
            "http.compression is 'zstd', but the package zstandard is missing. "
            "Install it with: pip install 'rl-insight[zstd]'."
        )
    return "zstd" if has_zstd and choice != "gzip" else "gzip"


def _compress(body: bytes, encoding: str | None) -> bytes:
    if encoding is None:
        return body
    if encoding == "gzip":
        return gzip.compress(body, compresslevel=1)
    import zstandard

    compressed: bytes = zstandard.compress(body, 1)
    return compressed
