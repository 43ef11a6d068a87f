"""Pushes metrics to Prometheus, Mimir, VictoriaMetrics and others by Prometheus remote-write 1.0."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf
from typing import Any

import cramjam

from rl_insight.collector.base import Sink
from rl_insight.collector.collector import HEALTH_NAMES
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.derived_families import DERIVED_NAMES, DerivedFamily
from rl_insight.collector.series import _Family
from rl_insight.collector.sinks.changed_series import ChangedSeries, TrackedSeries
from rl_insight.collector.sinks.delivery import HttpCarrier, RefusedError, Retries, checked_url
from rl_insight.collector.sinks.derived_samples import DerivedSamples
from rl_insight.collector.sinks.prometheus import bucket_bounds
from rl_insight.collector.sinks.write_request import (
    TimeSeries,
    bound_label,
    labels,
    metadata,
    sample,
    stamp,
    write_request,
)
from rl_insight.errors import TransportError
from rl_insight.schema import Batch
from rl_insight.schema.names import DEFAULT_NAMESPACE, exposed_name

_HEADERS = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
_METADATA_EVERY_MS = 600_000
_LATENESS_MS = 15_000
"""How late a gauge's value may come without being overtaken by the repetition of the one before."""
_MAX_SPLITS = 64
_SPLIT_STATUSES = frozenset({400, 413, 422})


class RemoteWriteSink(Sink):
    """Sends every series that changed, under the names and labels of `/metrics`.

    - Counters and histograms are sums over all processes, at the time they are sent, as a scrape would see them.
      Gauges keep every value with the time it was set.
    - Samples of a series go out in the order of their times. A gauge's value that is not newer than one already sent
      is left out and counted as `late_samples`: receivers refuse it.
    - A series that did not change is repeated every `repeat_s` while its run is heard of, so that it stays in sight of
      instant queries.
    - Trouble that may pass (no connection, 429, 5xx) is retried with growing pauses for at most `retry_for_s`, then the
      samples are given up and counted as `lost_samples`. Of a request that is refused the good part is sent again
      without the bad one, which is counted as `refused_samples`; `last_refusal` is the receiver's own sentence.

    Args:
        url: the receiver's endpoint, for Prometheus ``http://host:9090/api/v1/write``.
        namespace: stands before every name.
        headers: sent with each request, for instance a token or a tenant.
        timeout_s: how long one request may take.
        retry_for_s: how long a request is retried.
        max_samples: the most samples of one request.
        flush_interval_s: how often changes are sent.
        repeat_s: how often a series that did not change is sent.
        reserved: metric names that nobody may use.
        derived: a sink of the same collector: what is derived from spans is sent too, with trace ids as exemplars.
        clock: the wall clock in nanoseconds.
        name: the sink's name in status and metrics.
    """

    def __init__(
        self,
        url: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
        retry_for_s: float = 300.0,
        max_samples: int = 5_000,
        flush_interval_s: float = 5.0,
        repeat_s: float = 60.0,
        reserved: Iterable[str] = HEALTH_NAMES,
        derived: DerivedMetrics | None = None,
        clock: Callable[[], int] = time.time_ns,
        name: str = "remote_write",
    ) -> None:
        self.name = name
        self.flush_interval_s = flush_interval_s
        self._carrier = HttpCarrier(
            checked_url(url, "remote-write endpoint"),
            headers={**_HEADERS, **(headers or {})},
            timeout_s=timeout_s,
            is_passing=lambda status: status in {408, 429} or status >= 500,
        )
        self._attempts = Retries(retry_for_s)
        self._max_samples = max_samples
        self._repeat_ms = int(repeat_s * 1000)
        self._clock = clock
        self._namespace = namespace
        self._series = ChangedSeries(reserved=[*reserved, *DERIVED_NAMES] if derived else reserved)
        self._derived = (
            None if derived is None else DerivedSamples(derived, namespace=namespace, repeat_ms=self._repeat_ms)
        )
        self._encoder = _Encoder(namespace)
        self._repeated_ms = self._described_ms = clock() // 1_000_000
        self._described: set[str] = set()
        self._sent = self._refused = self._lost = 0
        self._last_refusal: str | None = None
        self._splits_left = 0

    def write(self, batch: Batch) -> None:
        """Merge the metrics of one batch."""
        self._series.apply(batch, self._now_ms())
        if self._series.pending_points >= self._max_samples:
            self.flush()

    def flush(self) -> None:
        """Send what has changed, and now and then what has not."""
        now_ms = self._now_ms()
        changed = dict.fromkeys(self._series.take())
        grown = {one.family for one in changed if self._encoder.has_grown(one.family)}
        for family in grown:
            # Every series of a histogram must have the same bounds, or a sum over them would mix them up.
            changed |= dict.fromkeys(self._series.of_family(family))
        encoded = [part for one in changed for part in self._encoder.encode(one, now_ms)]
        encoded += self._repetitions(now_ms)
        families: list[_Family | DerivedFamily] = list({one.family for one in changed})
        if self._derived is not None:
            made, derived_families = self._derived.take(now_ms)
            encoded += made
            families += derived_families
        if encoded:
            self._send_all(encoded, self._descriptions(families, now_ms))

    def close(self) -> None:
        """Close the connection."""
        self._carrier.close()

    def get_status(self) -> dict[str, Any]:
        """Tell what was sent, refused and lost."""
        return {
            "url": self._carrier.address,
            "requests": self._attempts.requests,
            "retries": self._attempts.retries,
            "series": len(self._series) + (0 if self._derived is None else len(self._derived)),
            "pending_samples": self._series.pending_points,
            "sent_samples": self._sent,
            "late_samples": self._encoder.late,
            "refused_samples": self._refused,
            "lost_samples": self._lost,
            "refused_rows": self._series.refused,
            "last_refusal": self._last_refusal,
        }

    def _now_ms(self) -> int:
        return self._clock() // 1_000_000

    def _repetitions(self, now_ms: int) -> list[TimeSeries]:
        if now_ms - self._repeated_ms < self._repeat_ms:
            return []
        self._repeated_ms = now_ms
        live = self._series.live(self._repeat_ms / 1000)
        return [part for one in live for part in self._encoder.repeat(one, now_ms, self._repeat_ms)]

    def _descriptions(self, families: Iterable[_Family | DerivedFamily], now_ms: int) -> bytes:
        """Return kind and documentation of metrics that are new, or were described a while ago."""
        if now_ms - self._described_ms >= _METADATA_EVERY_MS:
            self._described.clear()
            self._described_ms = now_ms
        parts = []
        for family in families:
            if family.name not in self._described:
                self._described.add(family.name)
                name = exposed_name(self._namespace, family.name, family.kind)
                documentation = family.documentation or f"{family.kind.capitalize()} {family.name}"
                parts.append(metadata(name, family.kind, documentation))
        return b"".join(parts)

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
            raise RefusedError(f"{self._refused - refused_before} samples were left out: {self._last_refusal}")

    def _send(self, request: list[TimeSeries], descriptions: bytes = b"") -> None:
        compressed = bytes(cramjam.snappy.compress_raw(write_request(request) + descriptions))
        try:
            self._attempts.run(lambda: self._carrier.send(compressed))
        except RefusedError as error:
            self._last_refusal = str(error)
            self._send_good_part(request, error.status)
        else:
            self._sent += sum(one.samples for one in request)

    def _send_good_part(self, request: list[TimeSeries], status: int) -> None:
        """Search for the series that spoil a request by halving it; receivers refuse all for the sake of one."""
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


class _Encoder:
    """Writes series as `TimeSeries` messages, and remembers the time of the last sample of each."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._bounds: dict[_Family, tuple[int, list[tuple[bytes, list[int]]]]] = {}
        self.late = 0

    def has_grown(self, family: _Family) -> bool:
        """Tell whether a histogram has buckets that were never sent."""
        known = self._bounds.get(family)
        return family.kind == "histogram" and (known is None or known[0] != len(family.codes))

    def encode(self, one: TrackedSeries, now_ms: int) -> Iterator[TimeSeries]:
        """Yield what a changed series consists of."""
        if one.family.kind == "gauge":
            yield from self._values(one, self._new_points(one))
            return
        now_ms = max(now_ms, one.last_ms + 1)
        one.last_ms = now_ms
        if one.family.kind == "histogram":
            yield from self._histogram(one, now_ms)
        else:
            yield from self._values(one, [(now_ms, one.series.value)])

    def repeat(self, one: TrackedSeries, now_ms: int, repeat_ms: int) -> Iterator[TimeSeries]:
        """Yield a series that did not change for a while."""
        if one.family.kind != "gauge":
            if now_ms - one.last_ms >= repeat_ms:
                yield from self.encode(one, now_ms)
            return
        # By the clock of whoever set the gauge, and a little late: its next value must not come out of order.
        set_ns = one.series.time_ns
        stamp_ms = 0 if set_ns is None else set_ns // 1_000_000 + now_ms - one.heard_ms - _LATENESS_MS
        if set_ns is not None and stamp_ms - one.last_ms >= repeat_ms - _LATENESS_MS:
            one.last_ms = stamp_ms
            yield from self._values(one, [(stamp_ms, one.series.value)])

    def _new_points(self, one: TrackedSeries) -> list[tuple[int, float]]:
        """Return a gauge's values that are newer than what was sent; of one millisecond the last."""
        points, one.points = one.points, []
        # Sorting is stable: of two values at one time the one that came last wins.
        newest = dict(sorted(points, key=lambda point: point[0]))
        found = [(time_ms, value) for time_ms, value in newest.items() if time_ms > one.last_ms]
        self.late += len(newest) - len(found)
        if found:
            one.last_ms = found[-1][0]
        return found

    def _values(self, one: TrackedSeries, points: list[tuple[int, float]]) -> Iterator[TimeSeries]:
        if not points:
            return
        if not one.encoded:
            name = exposed_name(self._namespace, one.family.name, one.family.kind)
            one.encoded = (labels(_label_pairs(one, name)),)
        samples = b"".join([sample(value, stamp(time_ms)) for time_ms, value in points])
        yield TimeSeries(one.encoded[0] + samples, len(points))

    def _histogram(self, one: TrackedSeries, time_ms: int) -> Iterator[TimeSeries]:
        if not one.encoded:
            one.encoded = self._histogram_labels(one)
        before, after, sum_labels, count_labels = one.encoded
        series = one.series
        time = stamp(time_ms)
        running = 0
        for bound, codes in self._bounds_of(one.family):
            for code in codes:
                running += series.buckets.get(code, 0)
            yield TimeSeries(before + bound + after + sample(float(running), time), 1)
        # At least what the buckets hold, as on /metrics.
        count = sample(float(max(series.count, sum(series.buckets.values()))), time)
        yield TimeSeries(before + bound_label(inf) + after + count, 1)
        yield TimeSeries(sum_labels + sample(series.value, time), 1)
        yield TimeSeries(count_labels + count, 1)

    def _histogram_labels(self, one: TrackedSeries) -> tuple[bytes, ...]:
        name = exposed_name(self._namespace, one.family.name, one.family.kind)
        pairs = _label_pairs(one, f"{name}_bucket")
        # Labels must be sorted: the bound stands between these two.
        before = labels([pair for pair in pairs if pair[0] < "le"])
        after = labels([pair for pair in pairs if pair[0] > "le"])
        return before, after, labels(_label_pairs(one, f"{name}_sum")), labels(_label_pairs(one, f"{name}_count"))

    def _bounds_of(self, family: _Family) -> list[tuple[bytes, list[int]]]:
        if self.has_grown(family):
            bounds = [(bound_label(bound), codes) for bound, codes in bucket_bounds(sorted(family.codes))]
            self._bounds[family] = (len(family.codes), bounds)
        return self._bounds[family][1]


def _label_pairs(one: TrackedSeries, name: str) -> list[tuple[str, str]]:
    project, experiment_name, run_id = one.key.run
    run = (("experiment_name", experiment_name), ("project", project), ("run_id", run_id))
    return sorted([("__name__", name), *one.key.labels, *(pair for pair in run if pair[1])])
