"""Shared by the adapters: recording through the default monitor, and files written from its batches."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl_insight.config import load_config
from rl_insight.config.paths import find_local_server
from rl_insight.monitor import default_monitor
from rl_insight.schema import Batch
from rl_insight.startup import ray_is_initialized

if TYPE_CHECKING:
    from rl_insight.recorder.flusher import Flusher

logger = logging.getLogger("rl_insight")

_START_TIMEOUT_S = 30.0


def is_recording() -> bool:
    """Return whether the default monitor records, through its own `init` or that of a parent process."""
    return default_monitor.active_recorder() is not None


def start_recording(config: dict[str, Any] | None = None, **identity: Any) -> Flusher | None:
    """Start the default monitor unless it already records; return None if recording is turned off.

    Without `init`, a program records to a known server, or else to the adapter's files only.
    """
    monitor = default_monitor
    if not is_recording():
        server = load_config(config).server
        has_receiver = server.backend != "auto" or server.url or find_local_server() or ray_is_initialized()
        if not has_receiver:
            config = {**(config or {}), "server": {"backend": "none"}}
        config = {"announce": False, **(config or {})}  # the originals print nothing
        monitor.init(config=config, **{name: value for name, value in identity.items() if value is not None})
    starting = monitor._starting
    if starting is not None:
        starting.join(_START_TIMEOUT_S)
    return None if monitor._pipeline is None else monitor._pipeline.flusher


class BatchFiles:
    """Makes lines of files from batches in the flusher's thread, and appends them there or in the thread of `save`.

    Subclasses implement `take`, which turns a batch into `lines`.
    """

    MAX_LINES = 10_000
    """The most lines to buffer; half as many for a file that cannot be written."""

    def __init__(self, flusher: Flusher) -> None:
        self._flusher = flusher
        self._lock = threading.Lock()
        self.lines: dict[Path, list[bytes]] = {}
        self._failing: set[Path] = set()
        flusher.add_listener(self._listen)

    def take(self, batch: Batch) -> bool:
        """Turn a batch into lines; return True to write them now."""
        raise NotImplementedError

    def gather(self, *, everything: bool) -> None:
        """Add lines that were held back and are ready; with `everything`, all of them."""

    def _listen(self, batch: Batch) -> None:
        with self._lock:
            is_due = self.take(batch)
            if batch.final:
                self.gather(everything=True)
            if is_due or batch.final or sum(map(len, self.lines.values())) >= self.MAX_LINES:
                self._write()

    def _write(self, *, is_durable: bool = False) -> bool:
        """Append the buffered lines; return whether all are written. Failures are retried later."""
        waiting, self.lines = self.lines, {}
        for path, lines in waiting.items():
            if not lines:
                continue
            try:
                _append(path, lines, is_durable=is_durable)
            except OSError as error:  # a full disk must not stop training
                self._keep(path, lines, error)
            else:
                self._failing.discard(path)
        return not self.lines

    def _keep(self, path: Path, lines: list[bytes], error: OSError) -> None:
        kept = self.lines[path] = lines[-self.MAX_LINES // 2 :]
        if len(kept) < len(lines):
            self._flusher.note_loss("lines", "file_not_written", len(lines) - len(kept))
        if path not in self._failing:
            self._failing.add(path)
            logger.warning("cannot write %s: %s. Keeping the last lines to retry.", path, error)

    def save(self, *, everything: bool = False, timeout_s: float = 5.0) -> bool:
        """Write everything recorded so far, within a bounded time; return whether all of it is in the files."""
        thread = self._flusher.thread
        is_complete = True
        if thread is None or thread.is_alive():  # after `finish` there is nothing to flush
            is_complete = self._flusher.request_flush(timeout_s)
        try:
            with self._lock:
                self.gather(everything=everything)
                return self._write(is_durable=True) and is_complete
        except Exception:  # training calls this at the end of a step
            logger.exception("RL-Insight could not write its files.")
            return False

    def save_soon(self) -> None:
        """Write everything recorded so far, in the background."""
        threading.Thread(target=self.save, name="rl-insight-save", daemon=True).start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write everything and stop listening, within a bounded time."""
        self.save(everything=True, timeout_s=timeout_s)
        self._flusher.remove_listener(self._listen)


def _append(path: Path, lines: list[bytes], *, is_durable: bool) -> None:
    """Append lines to a file; a failure leaves no partial line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as stream:
        size = stream.tell()
        try:
            rest = memoryview(b"".join(line + b"\n" for line in lines))
            while rest:
                rest = rest[stream.write(rest) :]
            if is_durable:
                os.fsync(stream.fileno())
        except OSError:
            with contextlib.suppress(OSError):
                stream.truncate(size)
            raise
