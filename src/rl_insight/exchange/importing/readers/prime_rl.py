"""prime-rl's `metrics.jsonl`: one row per line, with a step or None, a time, and values by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_insight.exchange.importing.readers.base import FileRows, Reader
from rl_insight.schema import Process
from rl_insight.schema.json_values import whole_number

_OWN = frozenset({"step", "time", "producer"})


class PrimeRlReader(Reader):
    """Reads rows of metrics; each producer (trainer, orchestrator, ...) is a process."""

    def add(self, rows: Mapping[Any, FileRows], record: dict[str, Any]) -> int:
        """Add a row's numbers as gauges."""
        seconds = record.get("time")
        if not isinstance(seconds, (int, float)):
            raise TypeError("no time")
        values = {name: value for name, value in record.items() if name not in _OWN}
        own = rows[str(record.get("producer") or "")]
        own.add_gauges(values, time_ns=self.context.wall_ns(float(seconds)), step=whole_number(record.get("step")))
        return 1

    def process(self, key: str) -> Process:
        """Return the process of a producer."""
        return self.context.process(key, role=key or "prime-rl")
