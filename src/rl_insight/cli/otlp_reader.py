"""OTLP files, read with the parts of the server that read OTLP requests."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.exchange.formats import LINE_READERS, OTLP, ReaderFactory
from rl_insight.exchange.readers.base import FileContext, Reader
from rl_insight.schema import Batch, BatchBuilder, Process

if TYPE_CHECKING:
    from rl_insight.metrics.totals import TotalsTable

_SIGNALS = (
    ("traces", re.compile(rb'"resourceSpans"')),
    ("metrics", re.compile(rb'"resourceMetrics"')),
    ("logs", re.compile(rb'"resourceLogs"')),
)


def all_readers() -> Mapping[str, ReaderFactory]:
    """Return every reader of a format of one record a line."""
    return {**LINE_READERS, OTLP: OtlpReader}


class OtlpReader(Reader):
    """Reads OTLP requests as JSON, one a line, as the OpenTelemetry collector's file exporter writes them."""

    def __init__(self, context: FileContext) -> None:
        from rl_insight.server.otlp.resources import ProcessBook

        super().__init__(context)
        self._book = ProcessBook()
        self._totals: dict[str, TotalsTable] = {}

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch for each resource of each request."""
        for line in data.splitlines():
            if line.strip():
                yield from self._request(line)

    def _request(self, line: bytes) -> Iterator[Batch]:
        from rl_insight.server.otlp.payloads import Signal, read_request

        signals = [name for name, key in _SIGNALS if key.search(line)]
        if not signals:
            self.context.counts.note_bad(f"no OTLP request: {line[:80].decode('utf-8', 'replace')!r}")
        for name in signals:
            try:
                request = read_request(Signal(name), line, is_json=True)
            except SchemaError as error:
                self.context.counts.note_bad(str(error))
                continue
            for entry in getattr(request, f"resource_{'spans' if name == 'traces' else name}"):
                yield from self._resource(name, entry)

    def _resource(self, signal: str, entry: Any) -> Iterator[Batch]:
        from rl_insight.server.otlp.logs import add_scope_logs
        from rl_insight.server.otlp.spans import SpanRows

        process = self._process(entry.resource)
        builder = BatchBuilder()
        rejected = 0
        if signal == "traces":
            spans = SpanRows(builder, process.process_id.partition("@")[0])
            for scope in entry.scope_spans:
                spans.add_scope(scope)
            rejected = spans.rejected
        elif signal == "metrics":
            rejected = self._add_metrics(builder, entry, process)
        else:
            for scope in entry.scope_logs:
                add_scope_logs(builder, scope, time.time_ns())
        if rejected:
            self.context.counts.note_bad(f"{rejected} records of an OTLP request", rejected)
        self.context.counts.records += len(builder)
        if len(builder):
            yield self.context.build(builder, process)

    def _add_metrics(self, builder: BatchBuilder, entry: Any, process: Process) -> int:
        from rl_insight.metrics.totals import TotalsTable
        from rl_insight.server.otlp.metrics import MetricRows

        totals = self._totals.get(process.process_id)
        if totals is None:
            totals = self._totals[process.process_id] = TotalsTable()
        rows = MetricRows(builder, totals, time.time_ns())
        for scope in entry.scope_metrics:
            rows.add_scope(scope)
        return rows.rejected

    def _process(self, resource: Any) -> Process:
        found = self._book.process_of(resource, "imported")
        names_run = any(pair.key in {"rl.run.id", "run_id"} for pair in resource.attributes)
        keeps_run = names_run and not self.context.force_run
        return msgspec.structs.replace(
            found,
            process_id=f"{found.process_id.partition('@')[0]}@{self.context.identity}",
            run_id=found.run_id if keeps_run else self.context.run_id,
        )
