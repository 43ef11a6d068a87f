"""The metric model: metric kinds, and metrics with their current values.

Every source (recorded series, derived metrics, health, GPUs) yields `Family` objects, which `/metrics`, remote write
and OTLP consume.
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
