"""Exports of a run as batches: records as JSON Lines, frames, and OTLP JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from rl_insight.exchange.exporting._read_back import read_back
from rl_insight.exchange.exporting.rows import Selection
from rl_insight.exchange.exporting.writers.output import output_file
from rl_insight.metrics import batch_families
from rl_insight.otlp.encode.items import SCOPE, log_items, session_items, span_items
from rl_insight.otlp.encode.json import log_object, metric_object, request, span_object
from rl_insight.schema import Batch, encode, frame, process_record, record_json, records
from rl_insight.schema.names import DEFAULT_NAMESPACE
from rl_insight.schema.tables import RECORDED
from rl_insight.store.queries import Cursor

_encode = msgspec.json.Encoder().encode
Parts: TypeAlias = Iterator[tuple[bytes, int]]
"""The parts of a batch to write, each with its number of records."""


def write_records(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write records, one per line; return how many."""
    introduced: set[str] = set()

    def lines(batch: Batch) -> Parts:
        if batch.process.process_id not in introduced:
            introduced.add(batch.process.process_id)
            yield record_json(process_record(batch)) + b"\n", 0
        for record in records(batch):
            yield record_json(record) + b"\n", 1

    return _write(cursor, path, selection, lines)


def write_frames(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write frames, like those of offline runs; return how many records they contain."""

    def frames(batch: Batch) -> Parts:
        yield frame(encode(batch)), sum(len(getattr(batch, name)) for name in RECORDED) + len(batch.losses)

    return _write(cursor, path, selection, frames)


def write_otlp(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write OTLP requests, one per line, like the OpenTelemetry collector's file exporter; return how many records.

    Open spans have no end yet, and open sessions are included.
    """
    return _write(cursor, path, selection, _requests)


def _write(cursor: Cursor, path: Path, selection: Selection, parts_of: Callable[[Batch], Parts]) -> int:
    written = 0
    with output_file(path) as stream:
        for batch in read_back(cursor, selection):
            for part, count in parts_of(batch):
                stream.write(part)
                written += count
    return written


def _requests(batch: Batch) -> Parts:
    process = batch.process

    def line(signal: str, scopes: dict[str, list[dict[str, Any]]]) -> bytes:
        return _encode(request(signal, process, scopes, DEFAULT_NAMESPACE)) + b"\n"

    spans = [span_object(span) for span in span_items(batch, with_open=True)]
    if spans:
        yield line("spans", {SCOPE: spans}), len(spans)
    loggers: dict[str, list[dict[str, Any]]] = {}
    logs = [*log_items(batch), *session_items(batch, with_open=True)]
    for log in logs:
        loggers.setdefault(log.scope, []).append(log_object(log))
    if loggers:
        yield line("logs", loggers), len(logs)
    families = batch_families(batch)
    if families:
        metrics = [metric_object(family, process.started_ns) for family in families]
        yield line("metrics", {SCOPE: metrics}), sum(len(family.points) for family in families)
