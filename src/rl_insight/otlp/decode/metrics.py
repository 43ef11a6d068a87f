"""Converts OTLP metrics to rows: counters and distributions as totals of the process, gauges as values."""

from __future__ import annotations

import time
from itertools import pairwise
from math import isfinite, isnan
from typing import Any

from rl_insight.metrics import COUNTER, GAUGE, HISTOGRAM, Distribution
from rl_insight.metrics.totals import SCALES, Added, SeriesTotal, TotalsTable, explicit_codes, exponential_counts
from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.values import as_text, plain
from rl_insight.schema import Process
from rl_insight.schema.json_values import json_text
from rl_insight.schema.names import label_name, metric_name
from rl_insight.schema.tables import LAST_TIME_NS

_DELTA = 1
_NO_VALUE = 1


class MetricRows(DecodedRows):
    """Converts metrics; totals are accumulated over the requests of a process."""

    def __init__(self, process: Process, totals: TotalsTable) -> None:
        super().__init__(process, totals)
        self._now_ns = time.time_ns()
        self._series: dict[tuple[str, str, str], int] = {}
        self._differences: list[Added] = []

    def undo(self) -> None:
        """Undo the additions of delta points."""
        for added in self._differences:
            added.undo()
        self._differences.clear()

    def add_scope(self, scope: Any) -> None:
        """Add all metrics of one instrumentation scope."""
        kinds = {
            "gauge": self._add_gauge,
            "sum": self._add_sum,
            "summary": self._add_summary,
            "histogram": self._add_histogram,
            "exponential_histogram": self._add_exponential_histogram,
        }
        for metric in scope.metrics:
            kind = metric.WhichOneof("data")
            if not metric.name or kind is None:
                self.reject("a metric without a name or without data")
                continue
            kinds[kind](metric, metric_name(metric.name), getattr(metric, kind))

    def _total(self, name: str, labels: str) -> SeriesTotal | None:
        total = self.totals.of(name, labels)
        if total is None:
            self.reject("too many series for one process")
        return total

    def _add_gauge(self, metric: Any, name: str, gauge: Any) -> None:
        for point in _points(gauge):
            self._sample(metric, name, GAUGE.name, _labels(point.attributes), point, _number(point))

    def _add_sum(self, metric: Any, name: str, total: Any) -> None:
        is_delta = total.aggregation_temporality == _DELTA
        kind = (COUNTER if total.is_monotonic else GAUGE).name
        # Otherwise the counters `x_total` and `x` would be one metric with two names.
        name = name.removesuffix("_total") if total.is_monotonic else name
        for point in _points(total):
            value, labels = _number(point), _labels(point.attributes)
            if total.is_monotonic and (isnan(value) or value < 0):
                self.reject(f"a negative or NaN counter: {name}")
                continue
            if total.is_monotonic or is_delta:
                series = self._total(name, labels)
                if series is None:
                    continue
                if is_delta:
                    self._differences.append(series.add(value))
                else:
                    series.add_cumulative(value, point.start_time_unix_nano)
                value = series.value
            self._sample(metric, name, kind, labels, point, value)

    def _add_summary(self, metric: Any, name: str, summary: Any) -> None:
        for point in _points(summary):
            attributes = _label_dict(point.attributes)
            for quantile in point.quantile_values:
                labels = _encoded(attributes | {"quantile": f"{quantile.quantile:g}"})
                self._sample(metric, name, GAUGE.name, labels, point, quantile.value)
            labels = _encoded(attributes)
            for suffix, value in (("sum", point.sum), ("count", float(point.count))):
                self._sample(metric, f"{name}_{suffix}", GAUGE.name, labels, point, value)

    def _add_histogram(self, metric: Any, name: str, histogram: Any) -> None:
        is_delta = histogram.aggregation_temporality == _DELTA
        for point in _points(histogram):
            bounds, counts = tuple(point.explicit_bounds), list(point.bucket_counts)
            if (counts and len(counts) != len(bounds) + 1) or not _are_bounds(bounds):
                self.reject(f"a histogram whose buckets do not match its bounds: {name}")
                continue
            filed: dict[int, int] = {}
            for code, count in zip(explicit_codes(bounds), counts, strict=False):
                if count:
                    filed[code] = filed.get(code, 0) + count
            self._distribution(metric, name, point, filed, is_delta=is_delta)

    def _add_exponential_histogram(self, metric: Any, name: str, histogram: Any) -> None:
        is_delta = histogram.aggregation_temporality == _DELTA
        for point in _points(histogram):
            if point.scale not in SCALES:
                self.reject(f"a histogram with a scale outside {SCALES[0]} to {SCALES[-1]}: {name}")
                continue
            buckets = exponential_counts(point)
            self._distribution(metric, name, point, buckets, is_delta=is_delta, scale=point.scale)

    def _distribution(
        self, metric: Any, name: str, point: Any, buckets: dict[int, int], *, is_delta: bool, scale: int | None = None
    ) -> None:
        labels = _labels(point.attributes)
        total = self._total(name, labels)
        if total is None:
            return
        extremes = (point.min, point.max) if point.HasField("min") and point.HasField("max") else ()
        seen = Distribution(point.count, point.sum, buckets, *extremes)
        if is_delta:
            self._differences.append(total.add_distribution(seen, scale))
        else:
            total.add_cumulative_distribution(seen, point.start_time_unix_nano, scale)
        self.builder.add_histogram(
            self._position(metric, name, HISTOGRAM.name, labels),
            time_ns=self._time(point),
            count=total.count,
            total=total.value,
            minimum=total.minimum,
            maximum=total.maximum,
            buckets=total.buckets(),
        )

    def _sample(self, metric: Any, name: str, kind: str, labels: str, point: Any, value: float) -> None:
        self.builder.add_sample(self._position(metric, name, kind, labels), time_ns=self._time(point), value=value)

    def _time(self, point: Any) -> int:
        return min(point.time_unix_nano or self._now_ns, LAST_TIME_NS)

    def _position(self, metric: Any, name: str, kind: str, labels: str) -> int:
        key = (name, kind, labels)
        found = self._series.get(key)
        if found is None:
            unit = f" [{metric.unit}]" if metric.unit and metric.unit != "1" else ""
            found = self._series[key] = self.builder.add_series(name, kind, f"{metric.description}{unit}", labels)
        return found


def _points(data: Any) -> list[Any]:
    return [point for point in data.data_points if not point.flags & _NO_VALUE]


def _are_bounds(bounds: tuple[float, ...]) -> bool:
    return all(map(isfinite, bounds)) and all(lower < upper for lower, upper in pairwise(bounds))


def _number(point: Any) -> float:
    return float(point.as_int if point.WhichOneof("value") == "as_int" else point.as_double)


def _label_dict(pairs: Any) -> dict[str, str]:
    return {label_name(key): as_text(value) for key, value in sorted(plain(pairs).items())}


def _labels(pairs: Any) -> str:
    return _encoded(_label_dict(pairs))


def _encoded(labels: dict[str, str]) -> str:
    return json_text(labels) or "{}"
