"""Sinks that send spans, metrics and logs as OTLP."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from rl_insight.collector.base import Sink, SinkContext, StoredRuns
from rl_insight.collector.run_activity import run_of
from rl_insight.collector.sinks.delivery import HttpCarrier, Retries, checked_url
from rl_insight.collector.sinks.otlp.outcomes import SERVICE, encode_derived, finding_logs, run_process
from rl_insight.errors import ConfigError, InsightError
from rl_insight.metrics import batch_families
from rl_insight.otlp.encode.items import SCOPE, log_items, session_items, span_items
from rl_insight.otlp.encode.protobuf import encode_family, encode_log, encode_span, request_part
from rl_insight.otlp.mapping import GRPC_MISSING, has_grpc
from rl_insight.otlp.wire import BYTES, fields, sized, tag
from rl_insight.schema import Batch, Process
from rl_insight.schema.names import DEFAULT_NAMESPACE

if TYPE_CHECKING:
    from rl_insight.collector.sinks.otlp.grpc_carrier import OtlpGrpcCarrier

SIGNALS = ("traces", "metrics", "logs")
PROTOCOLS = ("http", "grpc")

_REQUEST_PART = tag(1, BYTES)
_TRANSIENT_STATUSES = frozenset({408, 429, 502, 503, 504})
_GZIP_FROM_BYTES = 1024
_FINDINGS_EVERY_NS = 5_000_000_000
_MAX_REQUEST_BYTES = 3 * 1024 * 1024
"""Below the default limit of gRPC receivers, 4 MiB."""


class OtlpSink(Sink):
    """Base class of the OTLP sinks: buffers items of several batches and sends them with their process as the resource.

    Temporary failures are retried with backoff for at most `retry_for_s`. After that, and when a request is refused,
    its items count as lost in the status, and the collector counts and logs the failure.

    Args:
        endpoint: over HTTP, a URL, used as is; only a URL without a path gets OTLP's default, such as ``/v1/traces``.
            Over gRPC, ``host:port`` or an http or https URL.
        protocol: `http` (protobuf, compressed) or `grpc`.
        headers: sent with each request, such as a token.
        timeout_s: the request timeout.
        retry_for_s: how long a request is retried.
        max_items: a request is sent when this many items are buffered, or `flush_interval_s` after the first.
        flush_interval_s: the longest time before buffered items are sent.
        clock: the wall clock in nanoseconds.
        name: the sink's name in status and metrics.
    """

    signal: ClassVar[str]
    items: ClassVar[str]
    """The name of the signal's items in the status."""

    def __init__(
        self,
        endpoint: str,
        *,
        protocol: str = "http",
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 300.0,
        max_items: int = 2_000,
        flush_interval_s: float = 1.0,
        clock: Callable[[], int] = time.time_ns,
        name: str | None = None,
    ) -> None:
        if protocol not in PROTOCOLS:
            raise ConfigError(f"unknown OTLP protocol {protocol!r}: it must be {' or '.join(PROTOCOLS)}.")
        self.name = name or f"otlp_{self.signal}"
        self.flush_interval_s = flush_interval_s
        self._carrier = _carrier(endpoint, self.signal, protocol, headers=headers or {}, timeout_s=timeout_s)
        self._attempts = Retries(retry_for_s)
        self._max_items = max_items
        self._clock = clock
        self._context: SinkContext | None = None
        self._pending: dict[str, _Pending] = {}
        self._pending_items = self._pending_bytes = 0
        self._sent = self._lost = self._rejected = 0

    def attach(self, context: SinkContext) -> None:
        """Use the namespace as the `service.name` of every process."""
        self._context = context

    @abstractmethod
    def encode(self, batch: Batch) -> Iterable[tuple[str, bytes, int]]:
        """Yield the items of a batch for the signal: scope, bytes, and number of items."""

    def write(self, batch: Batch) -> None:
        """Buffer the items of a batch."""
        self._gather_all(batch.process, list(self.encode(batch)))
        if self._pending_items >= self._max_items:
            self.flush()

    def _gather_all(self, process: Process, items: list[tuple[str, bytes, int]], service: str = "") -> None:
        """Buffer items of one process; a full request is sent first."""
        service = service or (DEFAULT_NAMESPACE if self._context is None else self._context.namespace)
        remaining = sum(count for _, _, count in items)
        try:
            for scope, encoded, count in items:
                if self._pending_items >= self._max_items or self._pending_bytes + len(encoded) > _MAX_REQUEST_BYTES:
                    self._send()
                pending = self._pending.get(process.process_id)
                if pending is None:
                    pending = self._pending[process.process_id] = _Pending(process, service, {})
                pending.scopes.setdefault(scope, []).append(encoded)
                self._pending_items += count
                self._pending_bytes += len(encoded)
                remaining -= count
        except Exception:
            self._lost += remaining
            raise

    def flush(self) -> None:
        """Send buffered items."""
        self._send()

    def _send(self) -> None:
        if not self._pending:
            return
        pending = self._pending.values()
        parts = [_REQUEST_PART + sized(request_part(one.process, one.scopes, one.service)) for one in pending]
        count = self._pending_items
        self._pending, self._pending_items, self._pending_bytes = {}, 0, 0
        body = b"".join(parts)
        try:
            answer = self._attempts.run(lambda: self._carrier.send(body))
        except Exception:
            self._lost += count
            raise
        self._sent += count
        self._rejected += _rejected(answer)

    def close(self) -> None:
        """Close the connection."""
        self._carrier.close()

    def get_status(self) -> dict[str, Any]:
        """Return the counts of sent, rejected and lost items."""
        return {
            "endpoint": self._carrier.address,
            "requests": self._attempts.requests,
            "retries": self._attempts.retries,
            f"pending_{self.items}": self._pending_items,
            f"sent_{self.items}": self._sent,
            f"rejected_{self.items}": self._rejected,
            f"lost_{self.items}": self._lost,
        }


class OtlpTraceSink(OtlpSink):
    """Exports completed spans.

    - Open spans are sent when they complete.
    - An event is attached to its span if the span completes in the same batch. Otherwise it becomes a zero-length child
      span with `monitor.trace_segment="event"`, because a sent span cannot be changed.

    Args:
        endpoint: see `OtlpSink`.
        max_spans: spans per request.
        name: the sink's name in status and metrics.
        options: the other options of `OtlpSink`.
    """

    signal = "traces"
    items = "spans"

    def __init__(self, endpoint: str, *, max_spans: int = 2_000, name: str = "otlp", **options: Any) -> None:
        super().__init__(endpoint, max_items=max_spans, name=name, **options)

    def encode(self, batch: Batch) -> Iterable[tuple[str, bytes, int]]:
        """Return the completed spans and the events."""
        return [(SCOPE, encode_span(span), 1) for span in span_items(batch)]


class OtlpMetricSink(OtlpSink):
    """Exports metrics, with each process as a resource.

    Counters are cumulative monotonic sums; histograms are exponential with scale 4, which matches our buckets exactly.

    Args:
        endpoint: see `OtlpSink`.
        derived_interval_s: how often the metrics derived from spans are sent, under one resource per run with the
            `service.name` `rl-insight`. Their histograms have the bounds of `/metrics`, and exemplars.
        options: the other options of `OtlpSink`.
    """

    signal = "metrics"
    items = "points"

    def __init__(
        self,
        endpoint: str,
        *,
        derived_interval_s: float = 10.0,
        **options: Any,
    ) -> None:
        super().__init__(endpoint, **options)
        self._derived_every_ns = int(derived_interval_s * 1e9)
        self._derived_ns = 0

    def flush(self) -> None:
        """Send buffered points, and from time to time the derived metrics."""
        now_ns = self._clock()
        if self._context is not None and now_ns - self._derived_ns >= self._derived_every_ns:
            families = self._context.derived_families()
            for process, metrics in encode_derived(families, self._context.started_ns, now_ns):
                self._derived_ns = now_ns
                self._gather_all(process, [(SCOPE, *metric) for metric in metrics], SERVICE)
        self._send()

    def encode(self, batch: Batch) -> Iterable[tuple[str, bytes, int]]:
        """Return the metrics with their points."""
        started_ns = batch.process.started_ns
        return [(SCOPE, *encode_family(family, started_ns)) for family in batch_families(batch)]


class OtlpLogSink(OtlpSink):
    """Exports log lines, with their logger as the scope and the ids of their span.

    Ended sessions and the findings of a server's diagnosis are log records with dedicated scopes.
    """

    signal = "logs"
    items = "records"

    def __init__(self, endpoint: str, **options: Any) -> None:
        super().__init__(endpoint, **options)
        self._runs: StoredRuns | None = None
        self._looked_ns = 0
        self._known: dict[str, tuple[Process, int]] = {}
        """By run: a process that represents it, and when the last finding sent was written."""

    def attach(self, context: SinkContext) -> None:
        """Get access to the findings."""
        super().attach(context)
        self._runs = context.runs
        self._looked_ns = context.started_ns

    def encode(self, batch: Batch) -> Iterable[tuple[str, bytes, int]]:
        """Return the log lines by logger, and the ended sessions."""
        if self._runs is not None and batch.process.run_id not in self._known:
            self._known[batch.process.run_id] = (run_process(run_of(batch.process)), self._looked_ns)
        return [(log.scope, encode_log(log), 1) for log in (*log_items(batch), *session_items(batch))]

    def flush(self) -> None:
        """Send buffered records, and every few seconds new findings."""
        now_ns = self._clock()
        if self._runs is not None and now_ns - self._looked_ns >= _FINDINGS_EVERY_NS:
            self._looked_ns = now_ns
            for run_id, (process, since_ns) in list(self._known.items()):
                try:
                    logs, newest_ns = finding_logs(self._runs, run_id, since_ns)
                except InsightError:  # deleted in the meantime
                    del self._known[run_id]
                    continue
                self._known[run_id] = (process, newest_ns)
                self._gather_all(process, [(log.scope, encode_log(log), 1) for log in logs], SERVICE)
        self._send()


_SINKS: dict[str, type[OtlpSink]] = {"traces": OtlpTraceSink, "metrics": OtlpMetricSink, "logs": OtlpLogSink}


def otlp_sinks(
    endpoint: str,
    *,
    protocol: str = "http",
    signals: Collection[str] = SIGNALS,
    **options: Any,
) -> list[OtlpSink]:
    """Return one sink per signal for a receiver; a collector gives each its own thread and queue.

    Over HTTP, `endpoint` is the base URL, as in `OTEL_EXPORTER_OTLP_ENDPOINT`: ``/v1/traces`` and so on are appended.

    >>> [sink.name for sink in otlp_sinks("http://127.0.0.1:4318", signals=["traces", "logs"])]
    ['otlp_traces', 'otlp_logs']

    Raises:
        ConfigError: an unknown signal or protocol, or an invalid URL.
    """
    unknown = [signal for signal in signals if signal not in SIGNALS]
    if unknown or not signals:
        given = f"unknown OTLP signal {unknown[0]!r}" if unknown else "no OTLP signal"
        raise ConfigError(f"{given}: choose from {', '.join(SIGNALS)}.")
    return [
        _SINKS[signal](
            _signal_url(endpoint, signal) if protocol == "http" else endpoint,
            protocol=protocol,
            name=f"otlp_{signal}",
            **options,
        )
        for signal in SIGNALS
        if signal in signals
    ]


def _carrier(
    endpoint: str, signal: str, protocol: str, *, headers: Mapping[str, str], timeout_s: float
) -> HttpCarrier | OtlpGrpcCarrier:
    """Return a carrier to an endpoint; over HTTP, an endpoint without a path gets OTLP's default path."""
    if protocol == "grpc":
        if not has_grpc():
            raise ConfigError(f"the protocol cannot be grpc: {GRPC_MISSING}")
        from rl_insight.collector.sinks.otlp.grpc_carrier import OtlpGrpcCarrier

        return OtlpGrpcCarrier(endpoint, signal, headers=headers, timeout_s=timeout_s)
    url = urlsplit(checked_url(endpoint, "OTLP endpoint"))
    if url.path in {"", "/"}:
        url = url._replace(path=f"/v1/{signal}")
    return HttpCarrier(
        url.geturl(),
        headers={"Content-Type": "application/x-protobuf", **headers},
        timeout_s=timeout_s,
        is_transient=_TRANSIENT_STATUSES.__contains__,
        gzip_from=_GZIP_FROM_BYTES,
    )


def _signal_url(endpoint: str, signal: str) -> str:
    """Return the URL of a signal; an endpoint of another signal is converted."""
    parts = urlsplit(checked_url(endpoint, "OTLP endpoint"))
    path = parts.path.rstrip("/")
    for other in SIGNALS:
        path = path.removesuffix(f"/v1/{other}")
    return parts._replace(path=f"{path}/v1/{signal}").geturl()


class _Pending(NamedTuple):
    """Buffered items of one process."""

    process: Process
    service: str
    scopes: dict[str, list[bytes]]


def _rejected(answer: bytes) -> int:
    """Return how many items the receiver rejected; the response need not be protobuf."""
    try:
        partial = dict(fields(answer)).get(1, b"")
        count = dict(fields(partial)).get(1, 0) if isinstance(partial, bytes) else 0
    except ValueError:
        return 0
    return count if isinstance(count, int) else 0
