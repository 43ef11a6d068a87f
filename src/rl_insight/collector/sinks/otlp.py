"""Sends completed spans to a tracing system (Tempo, Jaeger, an OpenTelemetry collector) as OTLP over HTTP."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import logging
import time
from collections.abc import Callable, Mapping
from itertools import takewhile
from typing import Any
from urllib.parse import SplitResult, urlsplit

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span, Status

from rl_insight._version import __version__
from rl_insight.collector.base import Sink
from rl_insight.errors import ConfigError, TransportError
from rl_insight.schema import Batch, Process, records
from rl_insight.schema.records import EventRecord, SpanRecord

logger = logging.getLogger(__name__)

_STATES = frozenset({"state_interval", "state_nested"})
_RETRIED = frozenset({408, 429, 502, 503, 504})
_FIRST_PAUSE_S = 0.25
_MAX_PAUSE_S = 5.0
_GZIP_FROM_BYTES = 1024
_INT64 = range(-(2**63), 2**63)
_MAX_DEPTH = 16


class OtlpTraceSink(Sink):
    """Exports completed spans, gathered over several batches, with the process they come from as the resource.

    - A span that is still open is left to its completion, which comes in a later batch.
    - An instant is attached to its span when the span completes in the same batch. Otherwise it becomes a span of no
      length with `monitor.trace_segment="event"`, a child of its span, because a span already sent cannot be amended.
    - A request that fails is retried with growing pauses for at most `retry_for_s`, then its spans are given up: they
      are counted as `lost_spans` in the status, and the collector counts and logs the failure.

    Args:
        endpoint: the traces endpoint, used as it is; ``/v1/traces`` is appended only to a URL without a path.
        headers: sent with each request, for instance a token.
        timeout_s: how long one request may take.
        retry_for_s: how long a request is retried.
        max_spans: a request is sent when this many spans are gathered, or `flush_interval_s` after the first.
        flush_interval_s: the longest that a span waits for others.
        name: the sink's name in status and metrics.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
        retry_for_s: float = 30.0,
        max_spans: int = 2_000,
        flush_interval_s: float = 1.0,
        name: str = "otlp",
    ) -> None:
        self.name = name
        self.flush_interval_s = flush_interval_s
        self._url = _endpoint(endpoint)
        self._headers = {
            "Content-Type": "application/x-protobuf",
            "User-Agent": f"rl-insight/{__version__}",
            **(headers or {}),
        }
        self._timeout_s = timeout_s
        self._retry_for_s = retry_for_s
        self._max_spans = max_spans
        self._pending: dict[str, ResourceSpans] = {}
        self._pending_spans = 0
        self._connection: http.client.HTTPConnection | None = None
        self._sent = self._lost = self._rejected = self._requests = self._retries = 0

    def write(self, batch: Batch) -> None:
        """Take the completed spans and the instants of one batch."""
        spans = _spans(batch)
        if not spans:
            return
        process = batch.process
        pending = self._pending.get(process.process_id)
        if pending is None:
            pending = self._pending[process.process_id] = _resource_spans(process)
        pending.scope_spans[0].spans.extend(spans)
        self._pending_spans += len(spans)
        if self._pending_spans >= self._max_spans:
            self.flush()

    def flush(self) -> None:
        """Send what has been gathered."""
        if not self._pending:
            return
        request = ExportTraceServiceRequest(resource_spans=self._pending.values())
        count = self._pending_spans
        self._pending, self._pending_spans = {}, 0
        try:
            self._deliver(request.SerializeToString())
        except Exception:
            self._lost += count
            raise
        self._sent += count

    def close(self) -> None:
        """Close the connection."""
        self._disconnect()

    def get_status(self) -> dict[str, Any]:
        """Tell what was sent, rejected and lost."""
        return {
            "endpoint": self._url.geturl(),
            "requests": self._requests,
            "retries": self._retries,
            "pending_spans": self._pending_spans,
            "sent_spans": self._sent,
            "rejected_spans": self._rejected,
            "lost_spans": self._lost,
        }

    def _deliver(self, body: bytes) -> None:
        headers = dict(self._headers)
        if len(body) >= _GZIP_FROM_BYTES:
            body = gzip.compress(body, 1)
            headers["Content-Encoding"] = "gzip"
        deadline = time.monotonic() + self._retry_for_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                self._post(body, headers)
            except _TryAgainError as error:
                wait_s = max(pause_s, error.retry_after_s or 0.0)
                if time.monotonic() + wait_s > deadline:
                    raise TransportError(str(error)) from error
                self._retries += 1
                time.sleep(wait_s)
                pause_s = min(pause_s * 2, _MAX_PAUSE_S)
            else:
                return

    def _post(self, body: bytes, headers: dict[str, str]) -> None:
        self._requests += 1
        path = self._url.path + (f"?{self._url.query}" if self._url.query else "")
        try:
            connection = self._connect()
            connection.request("POST", path, body=body, headers=headers)
            response = connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self._disconnect()
            raise _TryAgainError(f"{self._url.geturl()} cannot be reached: {type(error).__name__}: {error}.") from error
        if response.status in _RETRIED:
            raise _TryAgainError(
                f"{self._url.geturl()} answered {response.status}.", retry_after_s=_seconds(response.headers)
            )
        if not 200 <= response.status < 300:
            text = answer[:200].decode("utf-8", "replace").strip()
            raise TransportError(f"{self._url.geturl()} refused the spans: {response.status} {text}.")
        self._rejected += _rejected_spans(answer)

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind: Callable[..., http.client.HTTPConnection]
            kind = http.client.HTTPSConnection if self._url.scheme == "https" else http.client.HTTPConnection
            self._connection = kind(self._url.hostname or "", self._url.port, timeout=self._timeout_s)
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _TryAgainError(TransportError):
    """A request that may succeed later."""


def _endpoint(endpoint: str) -> SplitResult:
    url = urlsplit(endpoint)
    if url.scheme not in {"http", "https"} or not url.hostname:
        raise ConfigError(f"{endpoint!r} is no OTLP endpoint: it must be an http or https URL with a host.")
    return url._replace(path="/v1/traces") if url.path in {"", "/"} else url


def _seconds(headers: http.client.HTTPMessage) -> float | None:
    try:
        return float(headers.get("Retry-After", ""))
    except ValueError:
        return None


def _rejected_spans(answer: bytes) -> int:
    try:
        return int(ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans)
    except Exception:  # noqa: BLE001 -- the answer of a receiver that took the spans need not be protobuf
        return 0


def _resource_spans(process: Process) -> ResourceSpans:
    attributes: dict[str, Any] = {
        **process.labels,
        "service.name": process.role or "rl-insight",
        "service.instance.id": process.process_id,
        "host.name": process.host,
        "process.pid": process.pid,
        "rl.run.id": process.run_id,
        "run_id": process.run_id,
        "project": process.project,
        "experiment_name": process.experiment_name,
    }
    if process.rank is not None:
        attributes["rank"] = process.rank
    resource_spans = ResourceSpans()
    resource_spans.resource.attributes.extend(_attributes(attributes))
    scope = resource_spans.scope_spans.add().scope
    scope.name, scope.version = "rl_insight", __version__
    return resource_spans


def _spans(batch: Batch) -> list[Span]:
    """Return the completed spans of a batch with their instants, and the other instants as spans of their own."""
    spans: dict[str, Span] = {}
    instants: list[Span] = []
    # Spans and events stand first among the records.
    rows = takewhile(lambda record: isinstance(record, SpanRecord | EventRecord), records(batch))
    for number, record in enumerate(rows):
        if isinstance(record, SpanRecord):
            if record.duration_ns is not None:
                spans[record.span_id] = _span(record)
        elif isinstance(record, EventRecord):
            owner = spans.get(record.span_id or "")
            if owner is None:
                instants.append(_instant(record, f"{record.process_id}/{batch.sequence}/{number}"))
            else:
                owner.events.append(_event(record))
    return [*spans.values(), *instants]


def _span(record: SpanRecord) -> Span:
    start_ns = max(record.start_ns, 0)
    span = Span(
        trace_id=bytes.fromhex(record.trace_id),
        span_id=bytes.fromhex(record.span_id),
        parent_span_id=bytes.fromhex(record.parent_id or ""),
        name=record.name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=start_ns,
        end_time_unix_nano=start_ns + (record.duration_ns or 0),
    )
    own: dict[str, Any] = {"monitor.trace_segment": record.segment, "process_id": record.process_id}
    if record.segment in _STATES:
        own["state_name"] = record.name
        own["state_lane_id"] = record.lane or record.process_id
    elif record.lane is not None:
        own["lane"] = record.lane
    if record.status == "error":
        span.status.code = Status.STATUS_CODE_ERROR
        span.status.message = record.error or ""
    if record.status != "ok":
        own["monitor.status"] = record.status
    if record.error is not None:
        own["error.type"] = record.error
    span.attributes.extend(_attributes({**record.attributes, **own, **_place(record)}))
    return span


def _event(record: EventRecord) -> Span.Event:
    return Span.Event(
        time_unix_nano=max(record.time_ns, 0),
        name=record.name,
        attributes=_attributes({**record.attributes, **_place(record)}),
    )


def _instant(record: EventRecord, identity: str) -> Span:
    """Return an instant as a span without length, under the span it happened in."""
    # The same batch always gives the same ids, so that a receiver can recognise what it already has.
    digest = hashlib.blake2b(identity.encode(), digest_size=24).digest()
    own: dict[str, Any] = {"monitor.trace_segment": "event", "process_id": record.process_id}
    if record.lane is not None:
        own["lane"] = record.lane
    return Span(
        trace_id=bytes.fromhex(record.trace_id) if record.trace_id else digest[8:],
        span_id=digest[:8],
        parent_span_id=bytes.fromhex(record.span_id or "") if record.trace_id else b"",
        name=record.name,
        kind=Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=max(record.time_ns, 0),
        end_time_unix_nano=max(record.time_ns, 0),
        attributes=_attributes({**record.attributes, **own, **_place(record)}),
    )


def _place(record: SpanRecord | EventRecord) -> dict[str, Any]:
    place: dict[str, Any] = {}
    if record.step is not None:
        place["step"] = record.step
    if record.session_id is not None:
        place["session_id"] = record.session_id
    return place


def _attributes(values: Mapping[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=_any_value(value)) for key, value in values.items()]


def _any_value(value: Any, depth: int = 0) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=value)
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int) and value in _INT64:
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    result = AnyValue()
    if value is None:
        return result
    if depth >= _MAX_DEPTH or not isinstance(value, list | dict):
        result.string_value = str(value)
    elif isinstance(value, list):
        result.array_value.values.extend(_any_value(item, depth + 1) for item in value)
        result.array_value.SetInParent()
    else:
        result.kvlist_value.values.extend(
            KeyValue(key=key, value=_any_value(item, depth + 1)) for key, item in value.items()
        )
        result.kvlist_value.SetInParent()
    return result
