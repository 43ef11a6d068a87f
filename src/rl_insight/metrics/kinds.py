"""Metric kinds, with everything that depends on the kind."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

Aggregation = Literal["avg", "sum", "min", "max", "last", "count", "rate", "increase"]
"""How queries combine the values of an interval."""


class MetricKind(msgspec.Struct, frozen=True):
    """One kind of metric.

    >>> COUNTER.exposed_name("rl", "steps"), COUNTER.exposed_name("rl", "steps_total")
    ('rl_steps_total', 'rl_steps_total')
    """

    name: str
    """On the wire, in the store and in JSON; also the Prometheus type."""
    suffixes: tuple[str, ...]
    """Suffixes of the exposed names; the first one belongs to the metric itself."""
    openmetrics_suffixes: tuple[str, ...]
    """Suffixes of the names that OpenMetrics reserves."""
    is_cumulative: bool
    """Points are totals since a start time, and are summed over processes."""
    is_distribution: bool
    """Points are `Distribution`s, not numbers."""
    aggregation: Aggregation
    """The default aggregation over an interval in queries."""
    remote_write_type: int
    """`prometheus.MetricMetadata.MetricType`."""
    otlp_type: str
    """The `data` field of `opentelemetry.proto.metrics.v1.Metric`."""

    @property
    def suffix(self) -> str:
        """The suffix of an exposed name."""
        return self.suffixes[0]

    def base_name(self, name: str) -> str:
        """Return a name without the kind's suffix."""
        return name.removesuffix(self.suffix)

    def exposed_name(self, namespace: str, name: str) -> str:
        """Return the name in Prometheus, with the suffix exactly once."""
        return f"{namespace}{'_' if namespace else ''}{self.base_name(name)}{self.suffix}"

    def exposed_names(self, name: str) -> list[str]:
        """Return every name that a metric occupies on `/metrics`, without a namespace."""
        base = self.base_name(name)
        return [base + suffix for suffix in self.suffixes]


COUNTER: Final = MetricKind(
    name="counter",
    suffixes=("_total",),
    openmetrics_suffixes=("", "_total", "_created"),
    is_cumulative=True,
    is_distribution=False,
    aggregation="rate",
    remote_write_type=1,
    otlp_type="sum",
)
GAUGE: Final = MetricKind(
    name="gauge",
    suffixes=("",),
    openmetrics_suffixes=("",),
    is_cumulative=False,
    is_distribution=False,
    aggregation="avg",
    remote_write_type=2,
    otlp_type="gauge",
)
HISTOGRAM: Final = MetricKind(
    name="histogram",
    suffixes=("", "_bucket", "_sum", "_count"),
    openmetrics_suffixes=("", "_bucket", "_sum", "_count", "_created"),
    is_cumulative=True,
    is_distribution=True,
    aggregation="avg",
    remote_write_type=3,
    otlp_type="exponential_histogram",
)

KINDS: Final = {kind.name: kind for kind in (COUNTER, GAUGE, HISTOGRAM)}
"""By name."""
