"""verl's console output: lines such as `step:7 - actor/loss:0.25 - timing_s/step:12.5`, with or without Ray's prefixes.

The lines have no timestamps. A step begins when the previous one ends, and lasts for `timing_s/step`; timestamps on
other lines of the log correct the clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from typing import Any

from rl_insight.exchange.importing.readers.base import FileContext, FileRows, Reader, number_of
from rl_insight.schema import Batch
from rl_insight.schema.json_values import whole_number

_PREFIX = rb"(?:\x1b\[[0-9;]*m)*(?:\([^()\n]{1,200} pid=\d+[^()\n]{0,200}\))?(?:\x1b\[[0-9;]*m)*\s*"
_STEP_LINE = re.compile(_PREFIX + rb"step:(-?\d{1,18}) - (.*)")
_ITEM = re.compile(r"(?P<name>[^\s:][^:]*):(?:np\.\w+\(|tensor\()?(?P<value>[^()\s]+)\)?$")
_TIMESTAMP = re.compile(rb"\b(20\d\d-[01]\d-[0-3]\d)[ T]([0-2]\d:[0-5]\d:[0-6]\d)(?:[.,](\d{1,9}))?")
_REPEATED = re.compile(r"\s*(?:\x1b\[[0-9;]*m)*\s*\[repeated \d+x across cluster\].*$")
_DURATION = "timing_s/step"


def is_verl_log(head: bytes) -> bool:
    r"""Return whether text is console output of verl.

    >>> is_verl_log(b"(TaskRunner pid=7) step:1 - actor/loss:0.5\n"), is_verl_log(b"some other log\n")
    (True, False)
    """
    return any(_STEP_LINE.match(line) for line in head.splitlines()) or b"(TaskRunner pid=" in head


class VerlLogReader(Reader):
    """Reads step lines; all others are skipped, and do not count as bad."""

    detects_partial_lines = False
    role = "trainer"

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._now_ns = context.origin_ns

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield one batch with the steps."""
        return self.convert_records(data.splitlines())

    def add(self, rows: Mapping[Any, FileRows], record: bytes) -> int:
        """Add a step; any other line only sets the clock."""
        matched = _STEP_LINE.match(record)
        if matched is None:
            self._note_time(record)
            return 0
        values = _values(matched[2].decode("utf-8", "replace"))
        if not values:
            raise ValueError("no values")
        self._add_step(rows[None], whole_number(int(matched[1])), values)
        return 1

    def _note_time(self, line: bytes) -> None:
        found = _TIMESTAMP.search(line)
        if found is None:
            return
        try:
            time = datetime.fromisoformat(f"{found[1].decode()}T{found[2].decode()}").replace(tzinfo=timezone.utc)
        except ValueError:
            return
        fraction_ns = int((found[3] or b"").ljust(9, b"0"))
        self._now_ns = max(self._now_ns, int(time.timestamp()) * 1_000_000_000 + fraction_ns)

    def _add_step(self, rows: FileRows, step: int | None, values: dict[str, float]) -> None:
        duration_ns = round(max(0.0, min(values.get(_DURATION, 0.0), 1e6)) * 1e9)
        start_ns, self._now_ns = self._now_ns, self._now_ns + duration_ns
        if duration_ns:
            span_id = number_of(self.context.identity, "step", step)
            rows.builder.add_span(
                span_id=span_id, trace=(0, span_id), name="step", start_ns=start_ns, duration_ns=duration_ns, step=step
            )
        rows.add_gauges(values, time_ns=self._now_ns, step=step)


def _values(text: str) -> dict[str, float]:
    """Return the numbers on a line, including those of NumPy and PyTorch."""
    found = {}
    for item in _REPEATED.sub("", text.rstrip()).split(" - "):
        matched = _ITEM.match(item.strip())
        if matched is None:
            continue
        try:
            found[matched["name"]] = float(matched["value"].rstrip(","))
        except ValueError:
            continue
    return found
