"""Samples and histograms of a batch as OTLP's bytes.

Both ends count alike: our totals since a process started are OTLP's cumulative sums, and our buckets, sixteen an
octave, are exactly those of an exponential histogram of scale 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any, NamedTuple

from rl_insight.collector.sinks.otlp.values import ITEM, attributes
from rl_insight.collector.sinks.protobuf import (
    BYTES,
    FIXED64,
    VARINT,
    double,
    fixed64,
    sized,
    tag,
    text,
    varint,
    zigzag,
)
from rl_insight.schema import Batch
from rl_insight.schema.records import _object, _rows

# metrics.v1.Metric
_NAME, _DESCRIPTION = tag(1, BYTES), tag(2, BYTES)
_GAUGE, _SUM, _EXPONENTIAL = tag(5, BYTES), tag(7, BYTES), tag(10, BYTES)
# Gauge, Sum, ExponentialHistogram
_POINT = tag(1, BYTES)
_CUMULATIVE, _MONOTONIC = tag(2, VARINT) + varint(2), tag(3, VARINT) + varint(1)
# NumberDataPoint and ExponentialHistogramDataPoint, which share the fields of the first line
_START, _TIME = tag(2, FIXED64), tag(3, FIXED64)
_NUMBER, _NUMBER_ATTRIBUTE = tag(4, FIXED64), tag(7, BYTES)
_ATTRIBUTE, _COUNT, _TOTAL = tag(1, BYTES), tag(4, FIXED64), tag(5, FIXED64)
_SCALE_4 = tag(6, VARINT) + zigzag(4)
_ZERO_COUNT, _POSITIVE, _NEGATIVE = tag(7, FIXED64), tag(8, BYTES), tag(9, BYTES)
_MINIMUM, _MAXIMUM = tag(12, FIXED64), tag(13, FIXED64)
# ExponentialHistogramDataPoint.Buckets
_OFFSET, _BUCKET_COUNTS = tag(1, VARINT), tag(2, BYTES)

_ORIGIN = 32768
_SMALLEST, _LARGEST = -1075 * 16, 1024 * 16
"""The buckets of all numbers there are; a code beyond them, which only a faulty producer sends, counts as the last."""


class EncodedMetric(NamedTuple):
    """One metric of one batch."""

    encoded: bytes
    points: int


class _Series(NamedTuple):
    name: str
    kind: str
    documentation: str
    labels: str


def encode_metrics(batch: Batch) -> list[EncodedMetric]:
    """Return the metrics of a batch; rows of an unknown kind and counters without a number are left out."""
    if not len(batch.samples) and not len(batch.histograms):
        return []
    string = batch.text
    series = [
        _Series(string(name) or "", string(kind) or "", string(documentation) or "", string(labels) or "")
        for name, kind, documentation, labels in _rows(batch.series)
    ]
    points: dict[tuple[str, str], list[bytes]] = {}
    documentation: dict[tuple[str, str], str] = {}
    started_ns = max(batch.process.started_ns, 0)
    start = _START + fixed64(started_ns) if started_ns else b""
    for position, point in [*_sample_points(batch, series, start), *_histogram_points(batch, series, start)]:
        row = series[position]
        points.setdefault((row.name, row.kind), []).append(_POINT + sized(point))
        documentation.setdefault((row.name, row.kind), row.documentation)
    return [EncodedMetric(_encode_metric(*key, documentation[key], found), len(found)) for key, found in points.items()]


def number_metric(
    name: str,
    kind: str,
    documentation: str,
    points: Iterable[tuple[Mapping[str, Any], float]],
    start_ns: int,
    time_ns: int,
) -> EncodedMetric:
    """Return a counter or a gauge whose points, labels and value, all have one time; a gauge has no start."""
    head = (_START + fixed64(start_ns) if start_ns else b"") + _TIME + fixed64(time_ns) + _NUMBER
    encoded = [_POINT + sized(head + double(value) + attributes(_NUMBER_ATTRIBUTE, labels)) for labels, value in points]
    return EncodedMetric(_encode_metric(name, kind, documentation, encoded), len(encoded))


def _encode_metric(name: str, kind: str, documentation: str, points: list[bytes]) -> bytes:
    head = _NAME + text(name) + (_DESCRIPTION + text(documentation) if documentation else b"")
    data = b"".join(points)
    if kind == "gauge":
        return ITEM + sized(head + _GAUGE + sized(data))
    if kind == "counter":
        return ITEM + sized(head + _SUM + sized(data + _CUMULATIVE + _MONOTONIC))
    return ITEM + sized(head + _EXPONENTIAL + sized(data + _CUMULATIVE))


def _sample_points(batch: Batch, series: list[_Series], start: bytes) -> list[tuple[int, bytes]]:
    points = []
    for position, time_ns, value, _step in _rows(batch.samples):
        kind = series[position].kind
        if kind == "counter" and value == value:  # noqa: PLR0124 -- the quickest test for NaN
            head = start
        elif kind == "gauge":
            head = b""
        else:
            continue
        body = head + _TIME + fixed64(max(time_ns, 0)) + _NUMBER + double(value)
        points.append((position, body + attributes(_NUMBER_ATTRIBUTE, _object(series[position].labels))))
    return points


def _histogram_points(batch: Batch, series: list[_Series], start: bytes) -> list[tuple[int, bytes]]:
    points = []
    codes, counts = batch.buckets.column("code").tolist(), batch.buckets.column("count").tolist()
    first = 0
    for position, time_ns, _step, count, total, minimum, maximum, length in _rows(batch.histograms):
        buckets = dict(zip(codes[first : first + length], counts[first : first + length], strict=True))
        first += length
        if series[position].kind != "histogram":
            continue
        # At least what the buckets hold: receivers refuse a histogram that contradicts itself.
        filled = max(count, sum(buckets.values()))
        body = start + _TIME + fixed64(max(time_ns, 0)) + _COUNT + fixed64(filled) + _TOTAL + double(total)
        if isfinite(minimum) and isfinite(maximum):
            body += _MINIMUM + double(minimum) + _MAXIMUM + double(maximum)
        body += encode_buckets(buckets) + attributes(_ATTRIBUTE, _object(series[position].labels))
        points.append((position, body))
    return points


def encode_buckets(buckets: Mapping[int, int]) -> bytes:
    """Return buckets by code (see `rl_insight.schema.histogram`) as those of an exponential histogram of scale 4."""
    positive: dict[int, int] = {}
    negative: dict[int, int] = {}
    for code, count in buckets.items():
        if code:
            side = positive if code > 0 else negative
            index = min(max(abs(code) - _ORIGIN, _SMALLEST), _LARGEST)
            side[index] = side.get(index, 0) + count
    encoded = _SCALE_4 + _ZERO_COUNT + fixed64(buckets.get(0, 0))
    for field, side in ((_POSITIVE, positive), (_NEGATIVE, negative)):
        if side:
            encoded += field + sized(_encode_side(side))
    return encoded


def _encode_side(counts: dict[int, int]) -> bytes:
    first, last = min(counts), max(counts)
    packed = b"".join([varint(counts.get(index, 0)) for index in range(first, last + 1)])
    return _OFFSET + zigzag(first) + _BUCKET_COUNTS + sized(packed)
