"""Pushes metrics to Prometheus, Mimir, VictoriaMetrics and others with Prometheus remote-write 1.0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cramjam

from rl_insight.collector.base import Sink, SinkContext
from rl_insight.collector.sinks.delivery import DeliveryRefusedError, HttpCarrier, Retries, checked_url
from rl_insight.collector.sinks.pushed_series import PushedSeries, TimeSeries, metadata, write_request
from rl_insight.errors import TransportError
from rl_insight.schema import Batch

_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_METADATA_EVERY_MS = 600_000
_MAX_SPLITS = 64
_SPLIT_STATUSES = frozenset({400, 413, 422})


class RemoteWriteSink(Sink):
    """Sends changed series, with the names and labels of `/metrics`.

    - Counters and histograms are summed over all processes, as in a scrape. Gauges keep every value and timestamp.
    - Samples of a series are sent in timestamp order. Out-of-order gauge values are dropped and counted as
      `late_samples`: receivers reject them.
    - An unchanged series is repeated every `repeat_s` while its run reports, so that instant queries find it. A series
      that disappeared from `/metrics` gets a stale marker.
    - Temporary failures (no connection, 429, 5xx) are retried with backoff for at most `retry_for_s`, then the samples
      are dropped and counted as `lost_samples`. A rejected request is sent again without the offending series, whose
      samples are counted as `refused_samples`; `last_refusal` is the receiver's message.

    The sink sends all metrics of its collector, including those derived from spans.

    Args:
        url: the receiver's endpoint, for Prometheus ``http://host:9090/api/v1/write``.
        headers: sent with each request, such as a token or a tenant.
        timeout_s: the request timeout.
        retry_for_s: how long a request is retried.
        max_samples: samples per request, at most.
        flush_interval_s: how often changes are sent.
        repeat_s: how often unchanged series are resent.
        clock: the wall clock in nanoseconds.
        name: the sink's name in status and metrics.
    """

    def __init__(
        self,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        retry_for_s: float = 300.0,
        max_samples: int = 5_000,
        flush_interval_s: float = 5.0,
        repeat_s: float = 60.0,
        clock: Callable[[], int] = time.time_ns,
        name: str = "remote_write",
    ) -> None:
        self.name = name
        self.flush_interval_s = flush_interval_s
        self._carrier = HttpCarrier(
            checked_url(url, "remote-write endpoint"),
            headers={**_HEADERS, **(headers or {})},
            timeout_s=timeout_s,
            is_transient=lambda status: status in {408, 429} or status >= 500,
        )
        self._attempts = Retries(retry_for_s)
        self._max_samples = max_samples
        self._repeat_ms = int(repeat_s * 1000)
        self._clock = clock
        self._namespace = ""
        self._pushed: PushedSeries | None = None
        self._described_ms = self._now_ms()
        self._described: set[str] = set()
        self._sent = self._refused = self._lost = 0
        self._last_refusal: str | None = None
        self._splits_left = 0

    def attach(self, context: SinkContext) -> None:
        """Track the metrics of a collector."""
        self._namespace = context.namespace
        self._pushed = PushedSeries(context, repeat_ms=self._repeat_ms, now_ms=self._now_ms())

    def write(self, batch: Batch) -> None:
        """Record that a run reported; its metrics are in the collector's table."""
        if self._pushed is None:
            return
        self._pushed.note(batch.process.run_id, self._now_ms())
        if self._pushed.pending_points >= self._max_samples:
            self.flush()

    def flush(self) -> None:
        """Send changed series, and from time to time unchanged ones."""
        now_ms = self._now_ms()
        encoded = [] if self._pushed is None else self._pushed.take(now_ms)
        if encoded:
            self._send_all(encoded, self._descriptions(encoded, now_ms))

    @property
    def flushes_when_idle(self) -> bool:
        """Whether series may still end, which those of a run do minutes after its last report."""
        return bool(self._pushed)

    def close(self) -> None:
        """Close the connection."""
        self._carrier.close()

    def get_status(self) -> dict[str, Any]:
        """Return the counts of sent, refused and lost samples."""
        return {
            "url": self._carrier.address,
            "requests": self._attempts.requests,
            "retries": self._attempts.retries,
            "series": 0 if self._pushed is None else len(self._pushed),
            "pending_samples": 0 if self._pushed is None else self._pushed.pending_points,
            "sent_samples": self._sent,
            "late_samples": 0 if self._pushed is None else self._pushed.late,
            "refused_samples": self._refused,
            "lost_samples": self._lost,
            "last_refusal": self._last_refusal,
        }

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000

    def _descriptions(self, encoded: Iterable[TimeSeries], now_ms: int) -> bytes:
        """Return the metadata of metrics that are new or due again."""
        if now_ms - self._described_ms >= _METADATA_EVERY_MS:
            self._described.clear()
            self._described_ms = now_ms
        families = {id(one.family): one.family for one in encoded if one.family is not None}
        new = {family.exposed_name(self._namespace): family for family in families.values()}
        for name in self._described & new.keys():
            del new[name]
        self._described.update(new)
        return b"".join([metadata(name, family.kind, family.documentation) for name, family in new.items()])

    def _send_all(self, encoded: list[TimeSeries], descriptions: bytes) -> None:
        self._splits_left = _MAX_SPLITS
        refused_before = self._refused
        requests = list(_requests(encoded, self._max_samples))
        for position, request in enumerate(requests):
            try:
                self._send(request, descriptions)
            except TransportError:
                self._lost += sum(one.samples for rest in requests[position:] for one in rest)
                raise
            descriptions = b""
        if self._refused > refused_before:
            raise DeliveryRefusedError(f"{self._refused - refused_before} samples were rejected: {self._last_refusal}")

    def _send(self, request: list[TimeSeries], descriptions: bytes = b"") -> None:
        compressed = bytes(cramjam.snappy.compress_raw(write_request(request) + descriptions))
        try:
            self._attempts.run(lambda: self._carrier.send(compressed))
        except DeliveryRefusedError as error:
            self._last_refusal = str(error)
            self._send_good_part(request, error.status)
        else:
            self._sent += sum(one.samples for one in request)

    def _send_good_part(self, request: list[TimeSeries], status: int) -> None:
        """Bisect a request to find the offending series: receivers reject it as a whole."""
        if len(request) == 1 or status not in _SPLIT_STATUSES or self._splits_left <= 0:
            self._refused += sum(one.samples for one in request)
            return
        self._splits_left -= 1
        middle = len(request) // 2
        self._send(request[:middle])
        self._send(request[middle:])


def _requests(encoded: list[TimeSeries], max_samples: int) -> Iterator[list[TimeSeries]]:
    request: list[TimeSeries] = []
    samples = 0
    for one in encoded:
        if request and samples + one.samples > max_samples:
            yield request
            request, samples = [], 0
        request.append(one)
        samples += one.samples
    if request:
        yield request
