"""OTLP requests in files, as the OpenTelemetry collector's file exporter writes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.exchange.importing.readers.base import FileContext, Reader
from rl_insight.metrics.totals import TotalsTable
from rl_insight.otlp.decode import rows_of
from rl_insight.otlp.decode.processes import ProcessBook, run_of
from rl_insight.otlp.decode.requests import OtlpSignal, read_request, resources_of
from rl_insight.otlp.decode.values import plain
from rl_insight.schema import Batch, Process
from rl_insight.schema.names import copy_of

_KEYS = {
    OtlpSignal.TRACES: b'"resourceSpans"',
    OtlpSignal.METRICS: b'"resourceMetrics"',
    OtlpSignal.LOGS: b'"resourceLogs"',
}


class OtlpReader(Reader):
    """Reads OTLP requests as JSON, one per line."""

    def __init__(self, context: FileContext) -> None:
        super().__init__(context)
        self._book = ProcessBook()
        self._totals: dict[str, TotalsTable] = {}

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield a batch per resource of each request."""
        for line in data.splitlines():
            if line.strip():
                yield from self._request(line)

    def _request(self, line: bytes) -> Iterator[Batch]:
        signals = [signal for signal, key in _KEYS.items() if key in line]
        if not signals:
            self.context.counts.note_bad("no OTLP request", line)
        for signal in signals:
            try:
                request = read_request(signal, line, is_json=True)
            except SchemaError as error:
                self.context.counts.note_bad(error)
                continue
            for entry in resources_of(request):
                yield from self._resource(signal, entry)

    def _resource(self, signal: OtlpSignal, entry: Any) -> Iterator[Batch]:
        process = self._process(entry.resource)
        totals = self._totals.get(process.process_id)
        if totals is None:
            totals = self._totals[process.process_id] = TotalsTable()
        rows = rows_of(signal, entry, process, totals)
        counts = self.context.counts
        if rows.rejected:
            counts.note_bad(f"{rows.rejected} records of an OTLP request: {rows.problem}", count=rows.rejected)
        counts.records += len(rows.builder)
        if len(rows.builder):
            yield self.context.build(rows.builder, process)

    def _process(self, resource: Any) -> Process:
        found = self._book.process_of(resource, "imported")
        keeps_run = not self.context.force_run and run_of(plain(resource.attributes))
        return msgspec.structs.replace(
            found,
            process_id=copy_of(found.process_id, self.context.identity),
            run_id=found.run_id if keeps_run else self.context.run_id,
        )
