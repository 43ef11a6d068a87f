"""OTLP requests to rows of batches."""

from __future__ import annotations

from typing import Any

from rl_insight.metrics.totals import TotalsTable
from rl_insight.otlp.decode.logs import LogRows
from rl_insight.otlp.decode.metrics import MetricRows
from rl_insight.otlp.decode.requests import OtlpSignal
from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.spans import SpanRows
from rl_insight.schema import Process

_ROWS: dict[OtlpSignal, type[DecodedRows]] = {
    OtlpSignal.TRACES: SpanRows,
    OtlpSignal.METRICS: MetricRows,
    OtlpSignal.LOGS: LogRows,
}


def rows_of(signal: OtlpSignal, entry: Any, process: Process, totals: TotalsTable) -> DecodedRows:
    """Return the rows of one resource; `totals` are those of the process so far, and are updated."""
    rows = _ROWS[signal](process, totals)
    rows.add_resource(entry)
    return rows
