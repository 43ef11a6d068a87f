"""Selects the series for each push to Prometheus, and encodes them as remote-write 1.0."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import inf
from typing import NamedTuple

import msgspec

from rl_insight.collector.base import SinkContext
from rl_insight.metrics import Distribution, Family, LabelItems, MetricKind, Point
from rl_insight.metrics.prometheus import number
from rl_insight.otlp.wire import BYTES, FIXED64, VARINT, double, fixed64, sized, tag, text, varint

_LATENESS_MS = 15_000
"""How late a gauge value can arrive without being overtaken by a repetition of the previous one."""
_Key = tuple[str, LabelItems]


class PushedSeries:
    """Tracks the samples sent of each series and encodes new ones; not thread-safe.

    An unchanged series is repeated every `repeat_ms`, so that instant queries find it. A series that is gone, such as
    the open spans of an ended process, gets a stale marker.
    """

    def __init__(self, context: SinkContext, *, repeat_ms: int, now_ms: int) -> None:
        self._context = context
        self._changes = context.series.follow()
        self._repeat_ms = repeat_ms
        self._repeated_ms = now_ms
        self._known: dict[_Key, _Known] = {}
        self._reported_ms: dict[str, int] = {}
        """When each run last reported, by id."""
        self.late = 0
        """Gauge values that arrived after a newer one was sent."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def pending_points(self) -> int:
        """Pending gauge values."""
        return self._changes.pending_points

    def note(self, run_id: str, now_ms: int) -> None:
        """Record that a run reported."""
        self._reported_ms[run_id] = now_ms

    def take(self, now_ms: int) -> list[TimeSeries]:
        """Return the series to send now."""
        found = list(self._changed(self._changes.take(), now_ms))
        if now_ms - self._repeated_ms >= self._repeat_ms:
            self._repeated_ms = now_ms
            self._reported_ms = {
                run: last_ms for run, last_ms in self._reported_ms.items() if now_ms - last_ms <= self._repeat_ms
            }
            found += self._repeated(self._context.series.families(), now_ms)
        found += self._derived(self._context.derived_families(), now_ms)
        return found

    def _changed(self, families: Iterable[Family], now_ms: int) -> Iterator[TimeSeries]:
        """Yield recorded metrics that changed; gauges with every value."""
        for family in map(self._prepared, families):
            for items, points in family.by_series():
                known = self._find(family, items)
                if family.kind.is_cumulative:
                    yield from known.write(family, points[-1].value, known.next_ms(now_ms))
                else:
                    known.arrived_ms = now_ms
                    yield from known.write_all(family, self._new(known, points))

    def _repeated(self, families: Iterable[Family], now_ms: int) -> Iterator[TimeSeries]:
        """Repeat recorded metrics that did not change, and end those that are gone."""
        present = set()
        for family in map(self._prepared, families):
            for point in family.family.points:
                known = self._find(family, point.labels)
                present.add(known.key)
                due_ms = now_ms
                if not family.kind.is_cumulative:
                    # On the clock of the process that set the gauge, and a little late, so that its next value is not
                    # out of order.
                    due_ms = point.time_ns // 1_000_000 + now_ms - known.arrived_ms - _LATENESS_MS
                wait_ms = self._repeat_ms - (0 if family.kind.is_cumulative else _LATENESS_MS)
                if due_ms - known.sent_ms >= wait_ms and dict(point.labels).get("run_id", "") in self._reported_ms:
                    yield from known.write(family, point.value, due_ms)
        yield from self._end(present, now_ms, is_derived=False)

    def _derived(self, families: Iterable[Family], now_ms: int) -> Iterator[TimeSeries]:
        """Yield derived metrics that changed or are due, and end those that are gone."""
        present = set()
        for family in map(self._prepared, families):
            for point in family.family.points:
                known = self._find(family, point.labels)
                known.is_derived = True
                present.add(known.key)
                state = point.value.total_count if isinstance(point.value, Distribution) else point.value
                if state != known.state or now_ms - known.sent_ms >= self._repeat_ms:
                    known.state = state
                    yield from known.write(family, point.value, known.next_ms(now_ms))
        yield from self._end(present, now_ms, is_derived=True)

    def _prepared(self, family: Family) -> _Prepared:
        return _Prepared(family, self._context.namespace)

    def _find(self, family: _Prepared, items: LabelItems) -> _Known:
        key = (family.name, items)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Known(key)
        return known

    def _new(self, known: _Known, points: list[Point]) -> list[tuple[int, float]]:
        """Return the gauge values newer than the last one sent; one per millisecond."""
        # Sorting is stable: of two values with the same timestamp, the later arrival wins.
        newest = dict(sorted(((point.time_ns // 1_000_000, point.value) for point in points), key=lambda one: one[0]))
        found = [(time_ms, value) for time_ms, value in newest.items() if time_ms > known.sent_ms]
        self.late += len(newest) - len(found)
        return found  # type: ignore[return-value]

    def _end(self, present: set[_Key], now_ms: int, *, is_derived: bool) -> Iterator[TimeSeries]:
        gone = [known for key, known in self._known.items() if known.is_derived is is_derived and key not in present]
        for known in gone:
            del self._known[known.key]
            yield from known.end(now_ms)


class _Prepared:
    """A metric with precomputed data for all its series."""

    __slots__ = ("bounds", "family", "kind", "name")

    def __init__(self, family: Family, namespace: str) -> None:
        self.family = family
        self.name = family.exposed_name(namespace)
        self.kind = family.kind
        found = family.cumulative_bounds() if family.kind.is_distribution else []
        self.bounds = [(bound_label(bound), buckets) for bound, buckets in (*found, (inf, [len(found)]))]

    def by_series(self) -> Iterable[tuple[LabelItems, list[Point]]]:
        found: dict[LabelItems, list[Point]] = {}
        for point in self.family.points:
            found.setdefault(point.labels, []).append(point)
        return found.items()


class _Known(msgspec.Struct, eq=False):
    """A series that was sent before; a histogram counts as one."""

    key: _Key
    sent_ms: int = 0
    """The time of the last sample sent."""
    arrived_ms: int = 0
    """When a gauge's last value arrived, on our clock."""
    is_derived: bool = False
    state: float | None = None
    """The last value of a derived series."""
    exemplar_ns: int = 0
    """The time of the newest exemplar sent."""
    encoded: tuple[bytes, ...] = ()
    bounds: list[tuple[bytes, list[int]]] = []
    """The labels of a histogram's buckets, as last sent."""

    def next_ms(self, now_ms: int) -> int:
        """Return a time later than the last one sent, even if the clock went back."""
        return max(now_ms, self.sent_ms + 1)

    def write(self, family: _Prepared, value: float | Distribution, time_ms: int) -> Iterator[TimeSeries]:
        """Yield one value."""
        if not isinstance(value, Distribution):
            return self.write_all(family, [(time_ms, value)])
        self.sent_ms = time_ms
        return self._write_distribution(family, value, stamp(time_ms))

    def write_all(self, family: _Prepared, points: list[tuple[int, float]]) -> Iterator[TimeSeries]:
        """Yield values with ascending timestamps."""
        if not points:
            return
        if not self.encoded:
            self.encoded = (labels(_pairs(self.key[0], self.key[1])),)
        self.sent_ms = points[-1][0]
        samples = b"".join([sample(value, stamp(time_ms)) for time_ms, value in points])
        yield TimeSeries(self.encoded[0] + samples, len(points), family.family)

    def end(self, now_ms: int) -> Iterator[TimeSeries]:
        """Yield the stale marker."""
        marker = stale_marker(stamp(self.next_ms(now_ms)))
        ended = list(self.encoded)
        if self.bounds:
            before, after, *others = self.encoded
            ended = [*(before + bound + after for bound, _ in self.bounds), *others]
        return (TimeSeries(encoded + marker, 1, None) for encoded in ended)

    def _write_distribution(self, family: _Prepared, value: Distribution, time: bytes) -> Iterator[TimeSeries]:
        if not self.encoded:
            self.encoded = _distribution_labels(*self.key)
        before, after, sum_labels, count_labels = self.encoded
        self.bounds = family.bounds
        running, count_of = 0, value.buckets.get
        for bound, buckets in family.bounds[:-1]:
            for bucket in buckets:
                running += count_of(bucket, 0)
            encoded = before + bound + after + sample(float(running), time)
            yield TimeSeries(encoded + self._new_exemplar(value, buckets), 1, family.family)
        bound, buckets = family.bounds[-1]
        count = sample(float(value.total_count), time)
        yield TimeSeries(before + bound + after + count + self._new_exemplar(value, buckets), 1, family.family)
        self.exemplar_ns = max([self.exemplar_ns, *(found.time_ns for found in value.exemplars.values())])
        yield TimeSeries(sum_labels + sample(value.sum, time), 1, family.family)
        yield TimeSeries(count_labels + count, 1, family.family)

    def _new_exemplar(self, value: Distribution, buckets: list[int]) -> bytes:
        found = value.exemplars.get(buckets[0]) if value.exemplars and buckets else None
        if found is None or found.time_ns <= self.exemplar_ns:
            return b""
        return exemplar(found.trace_id, found.value, found.time_ns // 1_000_000)


def _distribution_labels(name: str, items: LabelItems) -> tuple[bytes, ...]:
    pairs = _pairs(f"{name}_bucket", items)
    # Labels must be sorted: `le` goes between these two.
    before = labels([pair for pair in pairs if pair[0] < "le"])
    after = labels([pair for pair in pairs if pair[0] > "le"])
    return before, after, labels(_pairs(f"{name}_sum", items)), labels(_pairs(f"{name}_count", items))


def _pairs(name: str, items: LabelItems) -> list[tuple[str, str]]:
    return sorted([("__name__", name), *items])


# prometheus.WriteRequest, TimeSeries, Label, Sample, Exemplar, MetricMetadata
_TIME_SERIES, _METADATA = tag(1, BYTES), tag(3, BYTES)
_LABEL, _SAMPLE, _EXEMPLAR = tag(1, BYTES), tag(2, BYTES), tag(3, BYTES)
_LABEL_NAME, _LABEL_VALUE = tag(1, BYTES), tag(2, BYTES)
_VALUE, _TIMESTAMP = tag(1, FIXED64), tag(2, VARINT)
_EXEMPLAR_VALUE, _EXEMPLAR_TIMESTAMP = tag(2, FIXED64), tag(3, VARINT)
_TYPE, _FAMILY_NAME, _HELP = tag(1, VARINT), tag(2, BYTES), tag(4, BYTES)

_STALE = fixed64(0x7FF0000000000002)
"""The NaN that marks the end of a series."""


class TimeSeries(NamedTuple):
    """Samples of one series."""

    encoded: bytes
    samples: int
    family: Family | None
    """The metric, if its metadata may have to be sent."""


def write_request(series: Iterable[TimeSeries]) -> bytes:
    """Encode a request; metadata may be appended."""
    return b"".join([_TIME_SERIES + sized(one.encoded) for one in series])


def metadata(name: str, kind: MetricKind, documentation: str) -> bytes:
    """Encode the metadata of a metric."""
    described = _TYPE + varint(kind.remote_write_type) + _FAMILY_NAME + text(name) + _HELP + text(documentation)
    return _METADATA + sized(described)


def labels(pairs: Iterable[tuple[str, str]]) -> bytes:
    """Encode labels, which must be sorted by name and include `__name__`."""
    return b"".join([_label(name, value) for name, value in pairs])


@lru_cache(maxsize=65_536)
def bound_label(bound: float) -> bytes:
    """Encode the label of a histogram bucket."""
    return _label("le", number(bound))


@lru_cache(maxsize=1024)
def stamp(time_ms: int) -> bytes:
    """Encode a timestamp, for use in several samples."""
    return _TIMESTAMP + varint(time_ms)


def sample(value: float, time: bytes) -> bytes:
    """Encode a sample with a timestamp from `stamp`."""
    return _SAMPLE + sized(_VALUE + double(value) + time)


def stale_marker(time: bytes) -> bytes:
    """Encode a stale marker."""
    return _SAMPLE + sized(_VALUE + _STALE + time)


def exemplar(trace_id: str, value: float, time_ms: int) -> bytes:
    """Encode an exemplar."""
    return _EXEMPLAR + sized(
        _label("trace_id", trace_id) + _EXEMPLAR_VALUE + double(value) + _EXEMPLAR_TIMESTAMP + varint(time_ms)
    )


def _label(name: str, value: str) -> bytes:
    return _LABEL + sized(_LABEL_NAME + text(name) + _LABEL_VALUE + text(value))
