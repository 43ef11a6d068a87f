"""OTLP JSON: one request per line, as the OpenTelemetry collector's file exporter writes and reads them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from rl_insight.exchange.exporting._read_back import read_back
from rl_insight.exchange.exporting.rows import Selection
from rl_insight.exchange.exporting.writers.output import output_file
from rl_insight.metrics import batch_families
from rl_insight.otlp.encode.items import SCOPE, log_items, span_items
from rl_insight.otlp.encode.json import log_object, metric_object, request, span_object
from rl_insight.schema import Batch
from rl_insight.schema.names import DEFAULT_NAMESPACE
from rl_insight.store.queries import Cursor

_encode = msgspec.json.Encoder().encode


def write_otlp(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write requests of spans, metrics and logs; returns how many records they hold. Open spans have no end yet."""
    written = 0
    with output_file(path) as stream:
        for batch in read_back(cursor, selection):
            for one, count in _requests(batch):
                stream.write(_encode(one) + b"\n")
                written += count
    return written


def _requests(batch: Batch) -> Iterator[tuple[dict[str, Any], int]]:
    process = batch.process
    spans = [span_object(span) for span in span_items(batch, with_open=True)]
    if spans:
        yield request("spans", process, {SCOPE: spans}, DEFAULT_NAMESPACE), len(spans)
    loggers: dict[str, list[dict[str, Any]]] = {}
    for log in log_items(batch):
        loggers.setdefault(log.scope, []).append(log_object(log))
    if loggers:
        yield request("logs", process, loggers, DEFAULT_NAMESPACE), len(batch.logs)
    families = batch_families(batch)
    if families:
        metrics = [metric_object(family, process.started_ns) for family in families]
        points = sum(len(family.points) for family in families)
        yield request("metrics", process, {SCOPE: metrics}, DEFAULT_NAMESPACE), points
