"""The metric model: what a metric kind is, and how a metric looks at one moment.

Every source (recorded series, derived metrics, health, GPUs) yields `Family` objects; `/metrics`, remote write and OTLP
read them.
"""

from __future__ import annotations

from rl_insight.metrics.families import (
    Declaration,
    Distribution,
    Exemplar,
    Family,
    LabelItems,
    Point,
    batch_families,
    reserved_names,
)
from rl_insight.metrics.kinds import COUNTER, GAUGE, HISTOGRAM, KINDS, MetricKind

__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "KINDS",
    "Declaration",
    "Distribution",
    "Exemplar",
    "Family",
    "LabelItems",
    "MetricKind",
    "Point",
    "batch_families",
    "reserved_names",
]
