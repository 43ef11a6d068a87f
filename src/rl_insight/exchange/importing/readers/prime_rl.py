"""prime-rl's `metrics.jsonl`: one row per line, with a step or None, a time, and values by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rl_insight.exchange.importing.readers.base import Reader, decoded_lines, whole_step
from rl_insight.exchange.importing.readers.rows import FileRows
from rl_insight.schema import Batch
from rl_insight.schema.names import metric_name

_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(dict[str, Any])
_OWN = frozenset({"step", "time", "producer"})


class PrimeRlReader(Reader):
    """Reads rows of metrics; each producer (trainer, orchestrator, ...) is a process."""

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch for each producer."""
        found: dict[str, FileRows] = {}
        counts = self.context.counts
        for row in decoded_lines(data, _decoder, counts):
            try:
                self._add(found, row)
            except (TypeError, ValueError, OverflowError) as error:
                counts.records -= 1
                counts.note_bad(f"{error} in a row of metrics")
        for producer, rows in found.items():
            if len(rows.builder):
                process = self.context.process(producer, role=producer or "prime-rl")
                yield self.context.build(rows.builder, process)

    def _add(self, found: dict[str, FileRows], row: dict[str, Any]) -> None:
        seconds = row.get("time")
        if not isinstance(seconds, (int, float)):
            raise TypeError("there is no time")
        time_ns = self.context.wall_ns(float(seconds))
        rows = found.setdefault(str(row.get("producer") or ""), FileRows())
        for name, value in row.items():
            if name not in _OWN and isinstance(value, (int, float)):
                rows.add_gauge(metric_name(name), float(value), time_ns=time_ns, step=whole_step(row.get("step")))
