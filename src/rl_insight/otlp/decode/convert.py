"""One entrance to the decoding of a request's resources."""

from __future__ import annotations

from typing import Any

from rl_insight.metrics.totals import TotalsTable
from rl_insight.otlp.decode.logs import LogRows
from rl_insight.otlp.decode.metrics import MetricRows
from rl_insight.otlp.decode.requests import OtlpSignal
from rl_insight.otlp.decode.rows import DecodedRows
from rl_insight.otlp.decode.spans import SpanRows
from rl_insight.schema import Process


def rows_of(signal: OtlpSignal, entry: Any, process: Process, totals: TotalsTable) -> DecodedRows:
    """Return the rows of one resource; `totals` are those of the process so far, and are changed."""
    rows: DecodedRows
    if signal is OtlpSignal.TRACES:
        rows = SpanRows(process)
    elif signal is OtlpSignal.METRICS:
        rows = MetricRows(process, totals)
    else:
        rows = LogRows(process)
    rows.add_resource(entry)
    return rows
