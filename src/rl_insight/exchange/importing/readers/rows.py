"""Metrics of a file on their way into a batch."""

from __future__ import annotations

from collections.abc import Mapping

from rl_insight.exchange.importing.readers.base import json_text
from rl_insight.schema import BatchBuilder


class FileRows:
    """A builder that knows its series: each name with its labels is added once."""

    def __init__(self) -> None:
        self.builder = BatchBuilder()
        self._series: dict[tuple[str, str, str], int] = {}

    def series_of(self, name: str, kind: str, documentation: str = "", labels: Mapping[str, str] | None = None) -> int:
        """Return the position of a series."""
        text = json_text(dict(labels or {})) or "{}"
        key = (name, kind, text)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = self.builder.add_series(name, kind, documentation, text)
        return found

    def add_gauge(
        self,
        name: str,
        value: float,
        *,
        time_ns: int,
        step: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add a value of a gauge."""
        self.builder.add_sample(self.series_of(name, "gauge", "", labels), time_ns=time_ns, value=value, step=step)
