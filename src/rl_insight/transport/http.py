"""Sends batches to a server over HTTP, through a spool on the local disk."""

from __future__ import annotations

import hashlib
import http.client
import logging
import os
import tempfile
import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from rl_insight.backoff import Backoff
from rl_insight.config.paths import Server, file_name, find_server, user_folder
from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.errors import InsightError
from rl_insight.schema import decode, frame, read_frames
from rl_insight.schema.bundle import encode_bundle
from rl_insight.transport._compression import choose_compression, compress
from rl_insight.transport.base import Transport
from rl_insight.transport.ingest_client import Answer, IngestClient
from rl_insight.transport.spool import Spool, Waiting, adopt_orphans
from rl_insight.urls import without_credentials

logger = logging.getLogger("rl_insight")

MAX_REQUEST_BYTES: Final = 1_000_000
MAX_REQUEST_BATCHES: Final = 32
COMPRESS_FROM_BYTES: Final = 16 * 1024
CLOSE_TIMEOUT_S: Final = 1.0
_LOOKUP_INTERVAL_S: Final = 2.0
"""How long to wait before looking again for a server on this machine."""

_REFUSED: Final = frozenset({400, 413, 415, 422})
"""The server will never accept this request."""
_BUSY: Final = frozenset({408, 425, 429})
"""Like any 5xx: the server will accept the request later."""


class _Pause(NamedTuple):
    """How long to wait before the next request."""

    seconds: float
    requested: bool = False
    """Requested by the server, so even `flush` does not shorten it."""


class HttpTransport(Transport):
    """Writes each batch to a spool first; one thread posts them and deletes those that the server has acknowledged.

    `send` costs one small file, whatever the state of the server. Batches that a process leaves behind are adopted by
    the next transport on this machine with the same URL. Without a URL the transport sends to the server on this
    machine, looks it up again whenever it is unreachable, and delivers remaining batches to the next server there.

    Args:
        url: The server; None for the one on this machine.
        process_id: The process that sends the batches.
        token: The access token; None for the one saved by a server on this machine.
        data_dir: The data directory of the server on this machine; by default taken from the environment.
        ca_file: A certificate to trust instead of the system's, regardless of its host name.
        adopts_from: Other URLs whose undelivered batches this transport also sends.
        bundles: Whether to merge the batches of a request, as hubs do: costs this process a little and saves the
            server more.

    >>> transport = HttpTransport("http://127.0.0.1:18080", process_id="node7-4711-9f3a2c1d")
    >>> transport.get_status()["waiting_batches"]
    0
    >>> transport.close()
    """

    def __init__(
        self,
        url: str | None,
        *,
        process_id: str,
        token: str | None = None,
        data_dir: Path | None = None,
        timeout_s: float = 10.0,
        compression: str = "auto",
        spool_dir: str | os.PathLike[str] | None = None,
        spool_max_bytes: int = 256 * 1024 * 1024,
        retry_initial_s: float = 0.2,
        retry_max_s: float = 10.0,
        adopt_interval_s: float = 30.0,
        ca_file: str | None = None,
        adopts_from: Sequence[str] = (),
        bundles: bool = False,
    ) -> None:
        self._bundles = bundles
        self._process_id = process_id
        self._token = token
        self._timeout_s = timeout_s
        self._ca_file = ca_file
        self._compression_choice = compression
        self._compression = choose_compression(compression, is_loopback=True)
        self._data_dir = data_dir or default_data_dir()
        self._url = url
        self._server: Server | None = None
        self._client: IngestClient | None = None
        self._must_look = True
        self._found_no_server = False
        self._backoff = Backoff(retry_initial_s, retry_max_s, jitter=True)
        self._retry_max_s = max(retry_max_s, retry_initial_s)
        self._adopt_interval_s = adopt_interval_s
        self._spool_max_bytes = spool_max_bytes
        self._spool_root = spool_folder(local_spool(self._data_dir) if url is None else url, spool_dir)
        self._adopted_roots = [self._spool_root, *(spool_folder(other, spool_dir) for other in adopts_from)]
        own = None if self._spool_root is None else self._spool_root / file_name(process_id)
        self._spool = Spool(own, spool_max_bytes)
        self._adopted: list[Spool] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._hurry = False
        self._outage: str | None = None
        self._last_error: str | None = None
        self._warned: set[int] = set()
        self._delivered = self._delivered_bytes = self._retries = self._adopted_batches = 0
        if self._find_server() is None:
            self._no_server()
        self._thread = threading.Thread(target=self._run, name="rl-insight-http", daemon=True)
        self._thread.start()

    def _find_server(self) -> IngestClient | None:
        """Return a client of the server; None if none is known.

        After a failure the server is looked up again: on this machine another one may run by then, with another port
        or token.
        """
        if not self._must_look:
            return self._client
        found = find_server(self._url, self._token, self._data_dir)
        if found is None or found != self._server:
            self._connect(found)
        self._must_look = found is None
        return self._client

    def _connect(self, server: Server | None) -> None:
        if self._client is not None:
            self._client.close()
        self._server = server
        self._client = None
        if server is None:
            return
        ca_file = self._ca_file or server.tls_cert
        client = IngestClient(server.url, token=server.token, timeout_s=self._timeout_s, ca_file=ca_file)
        self._compression = choose_compression(self._compression_choice, is_loopback=client.is_loopback)
        self.server_url = server.url
        self._client = client
        if self._stopping:
            client.interrupt()

    def send(self, payload: bytes) -> None:
        """Put one batch into the spool and wake the sender."""
        if self._stopping:
            self.on_loss("batches", "closed", 1)
            return
        dropped = self._spool.put(payload)
        with self._changed:
            self._changed.notify_all()
        if dropped:
            self.on_loss("batches", "spool_full", dropped)

    def flush(self, timeout_s: float) -> bool:
        """Wait until the server has acknowledged everything; end any backoff at once."""
        with self._changed:
            self._hurry = True
            self._found_no_server = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping or self._found_no_server or not len(self._spool), timeout_s)
            self._hurry = False
        return not len(self._spool)

    def close(self) -> None:
        """Stop sending; undelivered batches stay on disk for a later process."""
        with self._changed:
            if self._stopping:
                return
            self._stopping = True
            self._changed.notify_all()
        if (client := self._client) is not None:
            client.interrupt()
        self._thread.join(CLOSE_TIMEOUT_S)
        lost = self._spool.close()
        for spool in self._adopted:
            spool.close()
        if lost:
            self.on_loss("batches", "spool_unavailable", lost)

    def abandon(self) -> None:
        """Close the resources that a forked child inherited; acquires no lock and sends nothing."""
        self._stopping = True
        self._changed = threading.Condition()
        if self._client is not None:
            self._client.abandon()
        for spool in (self._spool, *self._adopted):
            spool.abandon()

    @property
    def _shown_url(self) -> str:
        return without_credentials(self.server_url or "")

    def get_status(self) -> dict[str, Any]:
        """Return delivered and queued batches, the spool, and the last error."""
        return {
            "backend": "http",
            "url": self._shown_url if self.server_url else None,
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
            except Exception as error:  # noqa: BLE001 the sender must never die silently
                pause = self._unreachable(error)
            if pause is not None:
                self._wait(pause)
        if self._client is not None:
            self._client.close()

    def _send_next(self) -> _Pause | None:
        """Send one request of batches, this process's first; wait if there are none."""
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
        """Send batches in one request and handle the response; return the pause after a failure."""
        client = self._find_server()
        if client is None:
            return self._no_server()
        body = self._body(batches)
        encoding = self._compression if len(body) > COMPRESS_FROM_BYTES else None
        try:
            answer = client.post(compress(body, encoding), encoding)
        except (OSError, http.client.HTTPException) as error:
            return self._unreachable(error)
        if 200 <= answer.status < 300 and answer.is_receipt:
            self._accepted(spool, batches)
            self.on_flush_interval(answer.flush_s)
            if self._process_id in answer.stacks_of:
                self.on_stacks_wanted()
            if others := [one for one in answer.stacks_of if one != self._process_id]:
                self.on_stacks_of_others(others)
            return None
        if answer.status == 415 and encoding is not None:
            self._compression = None
            return self._deliver(spool, batches)
        if answer.status in _REFUSED:
            return self._refused(spool, batches, answer)
        if answer.status in _BUSY or answer.status >= 500:
            return self._busy(answer)
        return self._misdirected(answer)

    def _body(self, batches: Sequence[Waiting]) -> bytes:
        if self._bundles and len(batches) > 1:
            frames = BytesIO(b"".join(waiting.frame for waiting in batches))
            try:
                return frame(encode_bundle([decode(payload) for payload in read_frames(frames)]))
            except (InsightError, msgspec.MsgspecError, UnicodeError):
                pass  # the server will report what is wrong
        return b"".join(waiting.frame for waiting in batches)

    def _accepted(self, spool: Spool, batches: Sequence[Waiting]) -> None:
        spool.remove(waiting.number for waiting in batches)
        self._backoff.reset()
        if self._outage is not None:
            logger.info("RL-Insight server %s is back; %d batches are queued.", self._shown_url, len(self._spool))
            self._outage = None
        with self._changed:
            self._delivered += len(batches)
            self._delivered_bytes += sum(len(waiting.frame) for waiting in batches)
            self._changed.notify_all()

    def _refused(self, spool: Spool, batches: Sequence[Waiting], answer: Answer) -> _Pause | None:
        """Find the batches that the server rejects, and drop only those."""
        self._bundles = self._bundles and len(batches) == 1  # older servers do not support them
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
                "RL-Insight server %s rejected a batch (status %d): %s. The batch was dropped. "
                "Use the same version of rl-insight on both sides.",
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
        return _Pause(max(answer.retry_after_s, pause.seconds), requested=True)

    def _misdirected(self, answer: Answer) -> _Pause:
        """Keep the batches until the wrong address or token is fixed."""
        if answer.status in {401, 403}:
            self._must_look = True
            advice = "Set server.token (or RL_INSIGHT_TOKEN) to the server's token"
        else:
            advice = "Check that server.url is the address of an RL-Insight server"
        self._failed(f"it answered {answer.status}: {answer.sentence}", advice)
        return _Pause(self._retry_max_s)

    def _unreachable(self, error: Exception) -> _Pause:
        if self._stopping:
            return _Pause(0.0)
        self._must_look = True
        return self._failed(str(error) or type(error).__name__)

    def _no_server(self) -> _Pause:
        self._last_error = "no server is running on this machine, and server.url is not set"
        if self._outage is None:
            self._outage = self._last_error
            logger.warning(
                "RL-Insight found no server: events are kept in %s (up to %d MiB) and delivered when one starts. "
                "Start it with `rl-insight server start`, or set RL_INSIGHT_SERVER_URL.",
                self._spool.directory or "memory",
                self._spool_max_bytes // 2**20,
            )
        with self._changed:
            self._found_no_server = True
            self._changed.notify_all()
        return _Pause(min(self._backoff.next_s(), _LOOKUP_INTERVAL_S))

    def _failed(self, problem: str, advice: str = "They will be sent once the server accepts them") -> _Pause:
        """Record a failure, warn once per kind of outage, and return the pause: exponential, with full jitter."""
        self._last_error = problem
        self._retries += 1
        if self._outage != advice:
            self._outage = advice
            logger.warning(
                "RL-Insight cannot deliver to %s: %s. Keeping up to %d MiB in %s. %s.",
                self._shown_url,
                problem.rstrip("."),
                self._spool_max_bytes // 2**20,
                self._spool.directory or "memory",
                advice,
            )
        return _Pause(self._backoff.next_s())

    def _wait(self, pause: _Pause) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or (self._hurry and not pause.requested), pause.seconds)
            self._hurry = False

    def _adopt(self) -> None:
        roots = [root for root in self._adopted_roots if root is not None]
        for spool in [one for root in roots for one in adopt_orphans(root, self._spool_max_bytes)]:
            self._adopted_batches += len(spool)
            self._adopted.append(spool)
            logger.info(
                "RL-Insight is sending %d batches that an earlier process left in %s.", len(spool), spool.directory
            )

    def _close_adopted(self) -> None:
        for spool in self._adopted:
            spool.close()
        self._adopted = []


def local_spool(data_dir: Path) -> str:
    """Return the spool name of the server on this machine with this data directory."""
    return f"local:{data_dir.resolve()}"


def spool_folder(receiver: str, spool_dir: str | os.PathLike[str] | None) -> Path | None:
    """Return the folder of the spools for a receiver; None if the default folder belongs to another user."""
    name = hashlib.sha256(receiver.rstrip("/").encode()).hexdigest()[:16]
    if spool_dir is not None:
        return Path(spool_dir) / name
    home = user_folder()
    if home is not None:
        return home / "spool" / name
    logger.warning(
        "RL-Insight keeps undelivered batches in memory: its folder in %s belongs to another user. Set http.spool_dir "
        "to a private folder.",
        tempfile.gettempdir(),
    )
    return None
