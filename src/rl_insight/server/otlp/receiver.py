"""Feeds OTLP requests of all three signals, over HTTP and gRPC, into the ingest path."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from threading import Lock
from typing import Any

import msgspec

from rl_insight.errors import SchemaError, TooLargeError
from rl_insight.intake import Cadence, first_assigned_sequence
from rl_insight.metrics.totals import TotalsTable
from rl_insight.otlp.decode import rows_of
from rl_insight.otlp.decode.experiments import MARKERS as NAME_MARKERS
from rl_insight.otlp.decode.experiments import NAMELESS, Experiment, ExperimentBook, NamingHost
from rl_insight.otlp.decode.processes import ProcessBook, names_of, run_of, service_of
from rl_insight.otlp.decode.requests import OtlpSignal, read_request, resources_of
from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.values import plain
from rl_insight.schema import Batch, Process
from rl_insight.server.counters import ServerCounters
from rl_insight.server.ingest import Ingest, Outcome, Submission
from rl_insight.server.otlp.engine_requests import MARKERS, EngineRequests

_MAX_SENDERS = 10_000
_MAX_RECENT = 4096
_RECENT_S = 600.0
_LARGE_BYTES = 4 * 1024 * 1024


class OtlpSubmission:
    """One OTLP request on its way into the store."""

    def __init__(self, submission: Submission, taken: list[tuple[_Sender, DecodedRows]]) -> None:
        self._submission = submission
        self._rejected = sum(rows.rejected for _, rows in taken)
        self._problem = next((f"rejected: {rows.problem}." for _, rows in reversed(taken) if rows.rejected), "")
        self._taken = taken
        self._guard = Lock()

    async def settled(self) -> OtlpOutcome:
        """Wait for the commits without blocking a thread."""
        return self._judge(await self._submission.settled())

    def settle(self) -> OtlpOutcome:
        """Wait for the commits on this thread."""
        return self._judge(self._submission.settle())

    @property
    def has_failed(self) -> bool:
        """Whether the request is known to need a retry."""
        if self._submission.is_pending:
            return False
        outcome = self._submission.settle()
        return outcome.failed + outcome.duplicates > 0

    def _judge(self, outcome: Outcome) -> OtlpOutcome:
        failure = outcome.problem if outcome.failed else ""
        if outcome.duplicates:
            # Our sequence number was in use: the clock was set back since the last start. Skip far ahead.
            failure = failure or "the server's clock was set back. Retry."
        with self._guard:
            taken, self._taken = self._taken, []
        for sender, rows in taken:
            if failure:
                rows.undo()
            if outcome.duplicates:
                sender.skip_ahead()
        return OtlpOutcome(
            rejected=self._rejected + outcome.refused,
            problem=self._problem or (outcome.problem if outcome.refused else ""),
            failure=failure,
            retry_after_s=outcome.retry_after_s,
        )


class OtlpOutcome(msgspec.Struct, frozen=True):
    """The result of an OTLP request."""

    rejected: int = 0
    """Spans, points or records that were rejected permanently; the others are stored."""
    problem: str = ""
    """Why they were rejected."""
    failure: str = ""
    """Why nothing was stored; the client retries."""
    retry_after_s: float | None = None


class _Sender:
    """The state of one process that sends OTLP.

    OTLP requests have no sequence numbers, so the server assigns them; after a restart it continues above the numbers
    in the store.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.totals = TotalsTable()
        self._cadence = Cadence()
        self._sequence = itertools.count(first_assigned_sequence())

    def note_request(self, process: Process) -> Process:
        """Record a request; return the process with a heartbeat estimated from the pauses between its requests."""
        heartbeat_s = self._cadence.hear(time.monotonic())
        if heartbeat_s == process.heartbeat_s:
            return process
        return msgspec.structs.replace(process, heartbeat_s=heartbeat_s)

    def next_sequence(self) -> int:
        """Return the sequence number of the next batch."""
        return next(self._sequence)

    def skip_ahead(self) -> None:
        """Continue far above all numbers that an earlier server may have used."""
        self._sequence = itertools.count(next(self._sequence) + 2**50)


class OtlpReceiver:
    """Converts OTLP requests and submits them.

    A client that did not get our response sends the same bytes again: requests are deduplicated for ten minutes.
    """

    def __init__(
        self,
        ingest: Ingest,
        counters: ServerCounters,
        engine_requests: EngineRequests,
        experiments: ExperimentBook,
        *,
        namespace: str,
        max_items: int,
    ) -> None:
        self._ingest = ingest
        self._engine_requests = engine_requests
        self._counters = counters
        self._max_items = max_items
        self._large = Lock()
        self._book = ProcessBook()
        self._experiments = experiments
        self._namespace = namespace
        self._lock = Lock()
        self._senders: OrderedDict[tuple[str, str], _Sender] = OrderedDict()
        self._recent: OrderedDict[bytes, tuple[float, OtlpSubmission]] = OrderedDict()
        self._converting: dict[bytes, Future[OtlpSubmission]] = {}
        """Requests that are being read now."""

    def submit(self, signal: OtlpSignal, body: bytes, *, is_json: bool, peer: str, route: str) -> OtlpSubmission:
        """Read a request and start to write it; does not wait for the commit.

        Raises:
            TooLargeError: it has more items than this server decodes at once.
            SchemaError: the body is not a valid request.
        """
        digest = hashlib.blake2b(body, digest_size=16, person=signal.value.encode(), salt=_salt(peer)).digest()
        with self._lock:
            known = self._recall(digest)
            same = self._converting.get(digest)
            if known is None and same is None:
                converted = self._converting[digest] = Future()
        if known is not None:
            return known
        if same is not None:  # the client did not wait for its response, and sent the request again
            return same.result()
        try:
            submission = self._read(signal, body, is_json=is_json, peer=peer, route=route)
            with self._lock:
                self._recent[digest] = (time.monotonic(), submission)
            converted.set_result(submission)
        except BaseException as error:
            converted.set_exception(error)
            raise
        finally:
            with self._lock:
                del self._converting[digest]
        return submission

    def _read(self, signal: OtlpSignal, body: bytes, *, is_json: bool, peer: str, route: str) -> OtlpSubmission:
        # A row takes up to a kilobyte while it is converted: only one large request is converted at a time.
        with self._large if len(body) > _LARGE_BYTES else nullcontext():
            try:
                request = read_request(signal, body, is_json=is_json, max_items=self._max_items)
            except SchemaError as error:
                self._counters.refuse(route, "too_large" if isinstance(error, TooLargeError) else "schema")
                raise
            if signal is OtlpSignal.TRACES and any(marker in body for marker in MARKERS):
                self._engine_requests.assign(request)
            is_named = signal is OtlpSignal.TRACES and any(marker in body for marker in NAME_MARKERS)
            parts = [part for entry in resources_of(request) for part in self._parts(entry, peer, is_named)]
            return self._convert(signal, parts, len(body), peer, route)

    def _recall(self, digest: bytes) -> OtlpSubmission | None:
        oldest_s = time.monotonic() - _RECENT_S
        while self._recent:
            since_s, _ = next(iter(self._recent.values()))
            if since_s >= oldest_s and len(self._recent) < _MAX_RECENT:
                break
            self._recent.popitem(last=False)
        found = self._recent.get(digest)
        if found is None:
            return None
        if found[1].has_failed:
            del self._recent[digest]
            return None
        return found[1]

    def _parts(self, entry: Any, peer: str, is_named: bool) -> Iterator[tuple[Experiment, Any]]:
        """Yield a resource's data by experiment; all of it belongs to one unless a client of 0.3.0 sent it.

        Such a client has the namespace as its service, and names experiments on spans. In other programs, an attribute
        like `project` may mean anything.
        """
        attributes = plain(entry.resource.attributes)
        service = service_of(attributes)
        if run_of(attributes) or service != self._namespace:
            yield NAMELESS, entry
            return
        own, sender = names_of(attributes), NamingHost(service, peer)
        if is_named and any(scope.spans for scope in entry.scope_spans):
            yield from self._experiments.split(entry, sender, own)
        else:
            yield self._experiments.complete(sender, own), entry

    def _convert(
        self, signal: OtlpSignal, parts: list[tuple[Experiment, Any]], size: int, peer: str, route: str
    ) -> OtlpSubmission:
        batches: list[tuple[Batch, int]] = []
        taken: list[tuple[_Sender, DecodedRows]] = []
        share = size // max(len(parts), 1)
        for experiment, entry in parts:
            process = self._book.process_of(entry.resource, peer, experiment)
            sender = self._sender(process)
            # Requests of one process may overlap: updating its totals must be atomic.
            with sender.lock:
                rows = rows_of(signal, entry, sender.note_request(process), sender.totals)
            taken.append((sender, rows))
            if rows.rejected:
                self._counters.refuse(route, "schema", rows.rejected)
            if len(rows.builder):
                batches.append((rows.build(sender.next_sequence()), share))
        return OtlpSubmission(self._ingest.submit_batches(batches, route), taken)

    def _sender(self, process: Process) -> _Sender:
        key = (process.run_id, process.process_id)
        with self._lock:
            sender = self._senders.get(key)
            if sender is None:
                sender = self._senders[key] = _Sender()
                if len(self._senders) > _MAX_SENDERS:
                    self._senders.popitem(last=False)
            self._senders.move_to_end(key)
            return sender


def _salt(peer: str) -> bytes:
    return hashlib.blake2b(peer.encode(), digest_size=16).digest()
