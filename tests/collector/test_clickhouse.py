"""The queries of docs/warehouse.md run on ClickHouse's engine, over exported files and over the OTLP sink's output.

`make integrations` installs chDB, the engine as a library (900 MB); without it nothing here runs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from rl_insight.collector import SinkContext
from rl_insight.collector.series import SeriesTable
from rl_insight.collector.sinks.otlp import otlp_sinks
from rl_insight.exchange.warehouse.export import export_run
from rl_insight.exchange.warehouse.files import ParquetFolder
from rl_insight.store.queries.findings import Finding, write_findings
from rl_insight.store.runs import RunDirectory
from tests.warehouse_run import HOUR, warehouse_batch

session = pytest.importorskip("chdb.session", reason="chDB is not installed: `make integrations` does it")

PAGE = (Path(__file__).parents[2] / "docs" / "warehouse.md").read_text("utf-8")
OVER_FILES, THROUGH_THE_COLLECTOR = PAGE.split("## ClickHouse")
MAP = "Map(LowCardinality(String), String)"
TABLES = {
    "otel_traces": f"""Timestamp DateTime64(9), TraceId String, SpanId String, ParentSpanId String, SpanName String,
        StatusCode String, StatusMessage String, Duration UInt64, SpanAttributes {MAP}, ResourceAttributes {MAP}""",
    "otel_logs": f"""Timestamp DateTime64(9), SeverityNumber UInt8, SeverityText String, Body String, ScopeName String,
        LogAttributes {MAP}, ResourceAttributes {MAP}""",
    "otel_metrics_gauge": f"""TimeUnix DateTime64(9), MetricName String, Value Float64, Attributes {MAP},
        ResourceAttributes {MAP}""",
}
"""Of the columns that the Collector's exporter makes, those that the page names."""


def statements(part):
    return [re.sub(r"(?m)^ +", "", block) for block in re.findall(r"```sql\n(.*?)```", part, re.DOTALL)]


@pytest.fixture
def runs(tmp_path):
    directory = RunDirectory(tmp_path / "runs", min_free_bytes=0)
    with directory.open("r", create=True) as store:
        store.commit([warehouse_batch(rank) for rank in range(2)])
    yield directory
    directory.close()


@pytest.fixture
def clickhouse(tmp_path):
    connection = session.Session(str(tmp_path / "clickhouse"))
    yield connection
    connection.close()


def rows(clickhouse, sql):
    return [json.loads(line) for line in str(clickhouse.query(sql, "JSONCompactEachRow")).splitlines()]


def test_the_ten_queries_run_over_exported_files(clickhouse, runs, tmp_path):
    with runs.open("r") as store:
        export_run(store, "r", ParquetFolder(str(tmp_path / "out")))
    clickhouse.query("CREATE DATABASE warehouse; USE warehouse")
    for table in ("spans", "samples", "logs", "sessions"):
        files = tmp_path / "out" / table / "**" / "*.parquet"
        clickhouse.query(f"CREATE VIEW warehouse.{table} AS SELECT * FROM file('{files}')")
    _views, *queries = statements(OVER_FILES)
    answers = [
        rows(clickhouse, re.sub(r"quantile_cont\((\w+), ([\d.]+)\)", r"quantile(\2)(\1)", query)) for query in queries
    ]
    assert len(answers) == 10
    assert all(answers)
    assert answers[2][0] == ["r", "generate", 1, pytest.approx(4 / 3)]
    assert answers[6] == [["r", 0, 0.0], ["r", 1, 0.5], ["r", 2, 1.0]]


def plain(value):
    """Return an OTLP value as the exporter writes it to a map: as a string."""
    kind = value.WhichOneof("value")
    return "" if kind is None else str(getattr(value, kind))


def told(pairs):
    return {pair.key: plain(pair.value) for pair in pairs}


def received(requests):
    """Yield tables and rows, as the exporter creates them from requests."""
    for request in requests:
        for group in getattr(request, "resource_spans", ()):
            for scope in group.scope_spans:
                for span in scope.spans:
                    yield "otel_traces", {
                        "Timestamp": span.start_time_unix_nano / 1e9, "TraceId": span.trace_id.hex(),
                        "SpanId": span.span_id.hex(), "ParentSpanId": span.parent_span_id.hex(), "SpanName": span.name,
                        "StatusCode": ("Unset", "Ok", "Error")[span.status.code], "StatusMessage": span.status.message,
                        "Duration": span.end_time_unix_nano - span.start_time_unix_nano,
                        "SpanAttributes": told(span.attributes), "ResourceAttributes": told(group.resource.attributes),
                    }  # fmt: skip
        for group in getattr(request, "resource_logs", ()):
            for scope in group.scope_logs:
                for record in scope.log_records:
                    yield "otel_logs", {
                        "Timestamp": record.time_unix_nano / 1e9, "SeverityNumber": record.severity_number,
                        "SeverityText": record.severity_text, "Body": plain(record.body), "ScopeName": scope.scope.name,
                        "LogAttributes": told(record.attributes), "ResourceAttributes": told(group.resource.attributes),
                    }  # fmt: skip
        for group in getattr(request, "resource_metrics", ()):
            for scope in group.scope_metrics:
                for metric in scope.metrics:
                    for point in metric.gauge.data_points:
                        yield "otel_metrics_gauge", {
                            "TimeUnix": point.time_unix_nano / 1e9, "MetricName": metric.name,
                            "Value": point.as_double, "Attributes": told(point.attributes),
                            "ResourceAttributes": told(group.resource.attributes),
                        }  # fmt: skip


def test_the_ten_queries_run_over_the_tables_of_the_collector(clickhouse, runs, otlp_receiver):
    with runs.open("r") as store:
        finding = {"rule": "straggler", "severity": "critical", "start_ns": 1, "end_ns": 2}
        write_findings(
            store,
            [
                Finding(finding_id="f1", title="rank 1 is slow", culprit={"rank": 1}, updated_ns=2 * HOUR, **finding),
                Finding(finding_id="f2", title="it was slow", updated_ns=2 * HOUR, status="resolved", **finding),
            ],
        )
    for sink in otlp_sinks(otlp_receiver.url):
        sink.attach(SinkContext("", HOUR, SeriesTable(), [], runs))
        for rank in range(2):
            sink.write(warehouse_batch(rank))
        sink.flush()
        sink.close()
    clickhouse.query("CREATE DATABASE otel")
    for table, columns in TABLES.items():
        clickhouse.query(f"CREATE TABLE otel.{table} ({columns}) ENGINE = MergeTree ORDER BY tuple()")
    for table, row in received(otlp_receiver.requests):
        clickhouse.query(f"INSERT INTO otel.{table} FORMAT JSONEachRow {json.dumps(row)}")
    answers = [rows(clickhouse, query) for query in statements(THROUGH_THE_COLLECTOR)]
    assert len(answers) == 10
    states, lengths, ranks, steps, failures, hosts, rewards, sessions, errors, findings = answers
    assert states == [["r", "generate", 12, pytest.approx(18e-6)]]
    assert lengths[0][:3] == ["generate", 12, pytest.approx(1.5e-3)]
    assert ranks[0] == ["r", "generate", "1", pytest.approx(4 / 3)]
    assert [(run, step) for run, step, _ in steps] == [("r", 0), ("r", 1), ("r", 2)]
    assert failures == [["r", "generate", "ValueError", 6]]
    assert sorted(hosts) == [["h0", 6, 3], ["h1", 6, 3]]
    assert rewards == [["r", "1970-01-01 01:00:00", 0.5]]
    assert sessions == [["r", "accepted", 2, 1.0]]
    assert errors == [["1970-01-01 01:00:00", "r", 2]]
    assert findings == [["r", "rank 1 is slow", '{"rank":1}', "critical"]]
