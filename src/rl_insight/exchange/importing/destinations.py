"""Where imported batches go: a store in this process, or a running server."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import msgspec

from rl_insight.backoff import Backoff
from rl_insight.exchange.errors import ExchangeError
from rl_insight.intake import Admission
from rl_insight.schema import Batch, encode, frame
from rl_insight.store.runs import RunDirectory
from rl_insight.store.session_batch import SessionBatch, plain

_REQUEST_BYTES = 4 * 1024 * 1024
_COMMIT_BYTES = 128 * 1024 * 1024
_COMMIT_ROWS = 122_880
"""The size of a DuckDB row group: a commit of that many rows is written in place, a smaller one goes through the log
first, which costs 50% more."""
_MAX_BODY_BYTES = 8 * 1024 * 1024
_RETRY_FOR_S = 120.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 10.0


class ImportReceipt(msgspec.Struct, frozen=True):
    """The outcome for some batches."""

    new: int = 0
    duplicates: int = 0
    """Batches that were already in the run."""


class Destination(ABC):
    """Receives batches; they are stored when `send` returns."""

    @abstractmethod
    def send(self, batches: Sequence[Batch]) -> ImportReceipt:
        """Store batches, each once.

        Raises:
            InsightError: they could not be stored.
        """

    def is_enough(self, batches: Sequence[Batch], read_bytes: int) -> bool:
        """Return whether to send the batches, made from `read_bytes` bytes, before reading more."""
        del batches
        return read_bytes >= _REQUEST_BYTES


class StoreDestination(Destination):
    """Writes to the run files of a data directory that no server uses."""

    def __init__(self, runs: RunDirectory) -> None:
        self._runs = runs
        self._admission = Admission()

    def send(self, batches: Sequence[Batch]) -> ImportReceipt:
        """Commit batches to their runs."""
        by_run: dict[str, list[Batch]] = {}
        for batch in batches:
            by_run.setdefault(batch.process.run_id, []).append(self._admission.admit(batch))
        new = 0
        for run_id, some in by_run.items():
            with self._runs.open(run_id, create=True) as store:
                new += sum(store.commit(some))
        return ImportReceipt(new, len(batches) - new)

    def is_enough(self, batches: Sequence[Batch], read_bytes: int) -> bool:
        """Gather the amount that one commit writes most efficiently, within bounds."""
        return read_bytes >= _COMMIT_BYTES or sum(map(_rows, batches)) >= _COMMIT_ROWS


def _rows(batch: Batch) -> int:
    """Return the rows of the smallest table."""
    return len(batch.rows) if isinstance(batch, SessionBatch) else len(batch.spans)


class ServerAnswer(msgspec.Struct, frozen=True):
    """A server's response to one request of frames."""

    status: int
    accepted: int = 0
    duplicates: int = 0
    error: str = ""
    retry_after_s: float | None = None


class ServerDestination(Destination):
    """Posts frames to a server, and waits when the server asks for it.

    Args:
        post: sends one body of frames to the ingest route.
        pause: sleeps.
    """

    def __init__(self, post: Callable[[bytes], ServerAnswer], pause: Callable[[float], None] = time.sleep) -> None:
        self._post = post
        self._pause = pause

    def send(self, batches: Sequence[Batch]) -> ImportReceipt:
        """Post batches in as few requests as their size allows."""
        bodies = [b""]
        for batch in batches:
            framed = frame(encode(plain(batch)))
            if len(bodies[-1]) + len(framed) > _MAX_BODY_BYTES:
                bodies.append(b"")
            bodies[-1] += framed
        answers = [self._deliver(body) for body in bodies if body]
        return ImportReceipt(sum(one.accepted for one in answers), sum(one.duplicates for one in answers))

    def _deliver(self, body: bytes) -> ServerAnswer:
        deadline = time.monotonic() + _RETRY_FOR_S
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        while True:
            answer = self._post(body)
            if 200 <= answer.status < 300:
                return answer
            if answer.status not in {429, 503} or time.monotonic() > deadline:
                raise ExchangeError(f"the server rejected the records: {answer.error or answer.status}")
            self._pause(answer.retry_after_s or backoff.next_s())
