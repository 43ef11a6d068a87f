"""Metric and label names as Prometheus wants them, the same everywhere in RL-Insight."""

from __future__ import annotations

import re
from typing import Final, Literal

MetricKind = Literal["counter", "gauge", "histogram"]

DEFAULT_NAMESPACE: Final = "rl_insight_monitor"
RESERVED_LABELS: Final = frozenset({"project", "experiment_name", "run_id"})
OVERFLOW_LABEL: Final = "__overflow__"

_NOT_IN_METRIC = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL = re.compile(r"[^a-zA-Z0-9_]")


def metric_name(name: str) -> str:
    """Return a name that Prometheus accepts; what it does not allow becomes ``_``.

    >>> metric_name("timing_s/step"), metric_name("99th")
    ('timing_s_step', '_99th')
    """
    cleaned = _NOT_IN_METRIC.sub("_", name)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def label_name(name: str) -> str:
    """Return a label name that Prometheus accepts; ``__`` in front is kept for Prometheus itself."""
    cleaned = _NOT_IN_LABEL.sub("_", name)
    if cleaned.startswith("__"):
        cleaned = "_" + cleaned.lstrip("_")
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def exposed_name(namespace: str, name: str, kind: MetricKind) -> str:
    """Return the name under which Prometheus sees a metric; counters end in ``_total`` exactly once.

    >>> exposed_name("rl", "steps", "counter"), exposed_name("rl", "steps_total", "counter")
    ('rl_steps_total', 'rl_steps_total')
    """
    full = f"{namespace}_{name}" if namespace else name
    if kind == "counter":
        return full.removesuffix("_total") + "_total"
    return full
