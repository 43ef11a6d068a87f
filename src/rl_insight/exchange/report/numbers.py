"""Sums over many values, for the report."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_insight.exchange.report.model import Distribution

_BINS = 40


def distribution(values: NDArray[Any]) -> Distribution | None:
    """Return how values are spread; None when there are none.

    >>> distribution(np.array([1.0, 2.0, 4.0])).p50
    2.0
    """
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    p50, p95, p99 = np.quantile(values, (0.5, 0.95, 0.99)).tolist()
    smallest = max(float(values.min()), float(values.max()) * 1e-6, 1e-9)
    largest = max(float(values.max()), smallest * 1.001)
    edges = np.geomspace(smallest, largest, _BINS + 1)
    counts, _ = np.histogram(np.clip(values, edges[0], edges[-1]), edges)
    return Distribution(
        count=len(values),
        average=float(values.mean()),
        p50=p50,
        p95=p95,
        p99=p99,
        max=float(values.max()),
        edges=edges.tolist(),
        counts=counts.tolist(),
    )


def outlier_bound(values: NDArray[Any]) -> float:
    """Return the bound beyond which a value is far out: the upper quartile and three times the spread of the middle."""
    low, high = np.quantile(values, (0.25, 0.75)).tolist()
    return float(high + 3.0 * max(high - low, 0.0))


def sample_rows(values: NDArray[Any], bound: float, limit: int) -> NDArray[np.int64]:
    """Return which rows to show, in order: an even sample, and the largest of those beyond a bound."""
    if len(values) <= limit:
        return np.arange(len(values))
    outliers = np.flatnonzero(values > bound)
    outliers = outliers[np.argsort(values[outliers])[::-1][: limit // 2]]
    even = np.linspace(0, len(values) - 1, limit - len(outliers)).astype(np.int64)
    return np.unique(np.concatenate([even, outliers]))
