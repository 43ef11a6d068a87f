"""The ingest path: every batch, from every route, is committed by the store before it is acknowledged."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait
from io import BytesIO

import msgspec

from rl_insight.collector import Collector
from rl_insight.errors import SchemaError
from rl_insight.schema import Batch, read_frames
from rl_insight.server.counters import ServerCounters
from rl_insight.store.errors import StoreError, StoreOverloadedError
from rl_insight.store.writer import Settled, StoreWriter

RETRY_AFTER_S = 2.0


def retry_after_header(seconds: float | None) -> dict[str, str]:
    """Return the header that asks a client to wait: whole seconds, rounded up; by default `RETRY_AFTER_S`.

    >>> retry_after_header(2.3), retry_after_header(0.0), retry_after_header(None)
    ({'Retry-After': '3'}, {'Retry-After': '1'}, {'Retry-After': '2'})
    """
    return {"Retry-After": str(max(1, math.ceil(RETRY_AFTER_S if seconds is None else seconds)))}


"""The retry delay if the store does not suggest one."""
_MAX_PROBLEMS = 5
_STRING_BYTES = 60
"""The memory overhead of a string."""


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one request."""

    accepted: int = 0
    """New batches; they survive a crash of this process."""
    duplicates: int = 0
    """Batches that were stored before."""
    refused: int = 0
    """Batches that are invalid and must not be retried."""
    failed: int = 0
    """Batches that could not be written now; the sender retries."""
    problem: str = ""
    """Why batches were refused or failed."""
    retry_after_s: float | None = None
    is_overload: bool = False
    """Whether overload is the only reason for failures."""


class Submission:
    """The batches of one request on their way into the store."""

    def __init__(self) -> None:
        self._commit: Future[list[Settled]] | None = None
        self._batches = 0
        """The number of batches in the commit."""
        self.duplicates = 0
        """Batches that are known to be stored without asking the store."""
        self.processes: set[str] = set()
        self.hosts: set[str] = set()
        """The senders of the batches."""
        self._problems: dict[str, None] = {}
        self._refused = self._failed = self._overloads = 0
        self._retry_after_s: float | None = None
        self._settled: Outcome | None = None

    def refuse(self, problem: str) -> None:
        """Record an invalid batch."""
        self._refused += 1
        self._problems[problem] = None

    def fail(self, error: Exception) -> None:
        """Record a batch that could not be written now."""
        self._failed += 1
        self._problems[str(error)] = None
        asked = RETRY_AFTER_S
        if isinstance(error, StoreOverloadedError):
            asked = error.retry_after_s
            self._overloads += 1
        self._retry_after_s = max(asked, self._retry_after_s or 0.0)

    def wait_for(self, commit: Future[list[Settled]], batches: int) -> None:
        """Set the commit of the submission's batches."""
        self._commit, self._batches = commit, batches

    @property
    def is_pending(self) -> bool:
        """Whether the commit has not finished."""
        return self._commit is not None and not self._commit.done()

    async def settled(self) -> Outcome:
        """Wait for the commit without blocking a thread."""
        if self._commit is not None:
            await asyncio.wrap_future(self._commit)
        return self.outcome()

    def settle(self) -> Outcome:
        """Wait for the commit on this thread."""
        if self._commit is not None:
            wait([self._commit])
        return self.outcome()

    def when_settled(self, call: Callable[[], None]) -> None:
        """Call a function after the commit, on any thread; `outcome` then has the result."""
        if self._commit is None:
            call()
        else:
            self._commit.add_done_callback(lambda _: call())

    def outcome(self) -> Outcome:
        """Return the result; the commit must have finished."""
        if self._settled is not None:
            return self._settled
        accepted, duplicates = 0, self.duplicates
        for result in [] if self._commit is None else _results(self._commit, self._batches):
            if isinstance(result, SchemaError):
                self.refuse(str(result))
            elif isinstance(result, Exception):
                self.fail(result)
            else:
                accepted += result
                duplicates += not result
        self._commit = None
        self._settled = Outcome(
            accepted=accepted,
            duplicates=duplicates,
            refused=self._refused,
            failed=self._failed,
            problem=" ".join(list(self._problems)[:_MAX_PROBLEMS]),
            retry_after_s=self._retry_after_s,
            is_overload=self._failed > 0 and self._overloads == self._failed,
        )
        return self._settled


def _results(commit: Future[list[Settled]], batches: int) -> list[Settled]:
    if commit.cancelled():
        return [StoreError("the batch was not written: the server is stopping.")] * batches
    return commit.result()


class Ingest:
    """Decodes and validates batches once, and submits them to the store's writer.

    The store deduplicates: it keeps the sequence numbers across restarts, in the same transaction as the rows.
    """

    def __init__(self, writer: StoreWriter, collector: Collector, counters: ServerCounters) -> None:
        self._writer = writer
        self._collector = collector
        self._counters = counters

    def submit_frames(self, body: bytes) -> Submission:
        """Submit every valid batch of a body of frames; does not wait for the commits."""
        submission = Submission()
        found: list[tuple[Batch, int]] = []
        try:
            for payload in read_frames(BytesIO(body)):
                try:
                    batches = self._collector.decode_all(payload)
                except SchemaError as error:
                    self._counters.refuse("native", "schema")
                    submission.refuse(str(error))
                    continue
                size = (len(payload) + _STRING_BYTES * len(batches[0].strings)) // len(batches)
                found += [(batch, size) for batch in batches]
        except SchemaError as error:
            # After a damaged frame it is unknown where the next one starts.
            self._counters.refuse("native", "frame")
            submission.refuse(str(error))
        submission.processes.update(batch.process.process_id for batch, _ in found)
        submission.hosts.update(batch.process.host for batch, _ in found)
        # Batches already stored, as when a request was stored in part, must not fill the queue again: otherwise a
        # request larger than the queue would never be stored completely.
        known = self._collector.are_published([batch for batch, _ in found])
        submission.duplicates += sum(known)
        self._submit(submission, [one for one, is_known in zip(found, known, strict=True) if not is_known], "native")
        return submission

    def submit_batches(self, batches: Iterable[tuple[Batch, int]], route: str) -> Submission:
        """Submit batches, each with its size; does not wait for the commits."""
        submission = Submission()
        found: list[tuple[Batch, int]] = []
        for batch, size in batches:
            try:
                found.append((self._collector.admit(batch), size))
            except SchemaError as error:
                self._counters.refuse(route, "schema")
                submission.refuse(str(error))
        self._submit(submission, found, route)
        return submission

    def _submit(self, submission: Submission, batches: list[tuple[Batch, int]], route: str) -> None:
        if not batches:
            return
        try:
            commit = self._writer.submit_all(batches, on_refused=lambda: self._counters.refuse(route, "overload"))
        except StoreError as error:
            for _ in batches:
                self._counters.refuse(route, "store")
                submission.fail(error)
            return
        submission.wait_for(commit, len(batches))
