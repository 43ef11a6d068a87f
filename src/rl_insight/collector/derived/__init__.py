"""Metrics derived from spans: time in each state, durations by name, open spans, steps and sessions."""

from __future__ import annotations

from rl_insight.collector.derived.declarations import DECLARATIONS, DURATION_BOUNDS
from rl_insight.collector.derived.metrics import DerivedMetrics

__all__ = ["DECLARATIONS", "DURATION_BOUNDS", "DerivedMetrics"]
