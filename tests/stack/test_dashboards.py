"""The dashboards: generated from code, complete, and every expression in them finds data."""

from __future__ import annotations

import gzip
import json
import math
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from rl_insight.collector import InProcessCollector
from rl_insight.collector.sinks.otlp import OtlpTraceSink
from rl_insight.server.metrics import SERVER_NAMES
from rl_insight.stack import MetricsEndpointOfServer, start_stack
from rl_insight.stack.discovery import RegisteredTarget, write_discovery
from rl_insight.stack.render import Layout, dashboard_files

ROOT = Path(__file__).parents[2]
DASHBOARDS = {name: json.loads(text) for name, text in dashboard_files().items()}
PANELS = [(name, panel) for name, board in DASHBOARDS.items() for panel in board["panels"]]
TARGETS = [(name, panel["title"], target) for name, panel in PANELS for target in panel["targets"]]
PROMQL = sorted({target["expr"] for _, _, target in TARGETS if "expr" in target})
TRACEQL = sorted({target["query"] for _, _, target in TARGETS if "query" in target})


def test_checked_in_dashboards_are_those_that_the_code_makes(monkeypatch):
    pytest.importorskip("grafana_foundation_sdk")
    monkeypatch.syspath_prepend(str(ROOT))
    from dashboards.__main__ import generate

    assert generate() == dashboard_files()


def test_all_dashboards_are_there():
    assert set(DASHBOARDS) == {
        f"rl-insight-{name}.json"
        for name in ("overview", "timeline", "sessions", "hotspots", "hardware", "collector", "vllm", "sglang")
    }


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_dashboard_can_be_provisioned(name):
    board = DASHBOARDS[name]
    assert board["uid"] == name.removesuffix(".json")
    assert board["title"].startswith("RL-Insight / ")
    variables = [variable["name"] for variable in board["templating"]["list"]]
    assert variables[:5] == ["project", "experiment", "run", "role", "rank"]
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        assert panel["title"]
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        covered = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                   for y in range(place["y"], place["y"] + place["h"])}  # fmt: skip
        assert not covered & cells, f"{panel['title']} covers another panel"
        cells |= covered


@pytest.mark.parametrize("name", sorted(DASHBOARDS))
def test_dashboard_speaks_to_the_provisioned_data_sources_only(name):
    found = {panel["datasource"]["uid"] for panel in DASHBOARDS[name]["panels"]}
    found |= {
        variable["datasource"]["uid"] for variable in DASHBOARDS[name]["templating"]["list"] if "datasource" in variable
    }
    assert found <= {"prometheus", "tempo"}


def test_every_variable_that_is_used_exists():
    for name, title, target in TARGETS:
        known = {variable["name"] for variable in DASHBOARDS[name]["templating"]["list"]}
        used = set(re.findall(r"\$([a-z]\w*)", target.get("expr", "") + target.get("query", "")))
        assert used <= known, f"{name} {title}"


def test_metrics_about_the_server_are_those_that_it_shows():
    used = {match for text in PROMQL for match in re.findall(r"rl_insight_monitor_(server_\w+)", text)}
    assert used
    assert used <= SERVER_NAMES


@pytest.fixture(scope="module")
def filled_prometheus(tmp_path_factory, new_live_collector, engine_exporter, settings, prometheus_program):
    """A real Prometheus, started by the stack, that reads a live collector and the endpoint of engines."""
    directory = tmp_path_factory.mktemp("data")
    live = new_live_collector()
    write_discovery(
        Layout(directory).discovery_file,
        [RegisteredTarget(url=f"http://{engine_exporter.address}/metrics", job_name="engines", run_id="demo-1")],
    )
    book = {"version": 1, "targets": [
        {"url": f"http://{engine_exporter.address}/metrics", "job_name": "engines", "run_id": "demo-1", "added_ns": 1}
    ]}  # fmt: skip
    (directory / "targets.json").write_text(json.dumps(book))
    try:
        with start_stack(settings(), directory, MetricsEndpointOfServer(live.url)) as stack:
            yield stack.urls["prometheus"]
    finally:
        live.close()


def has_data(results):
    return any(not math.isnan(value) for _, value in results)


def test_every_expression_of_the_dashboards_finds_data(filled_prometheus, query, filled_in, wait_until):
    missing = list(PROMQL)

    def try_all():
        missing[:] = [text for text in missing if not has_data(query(filled_prometheus, filled_in(text)))]
        return not missing

    try:
        wait_until(try_all, 60.0)
    except pytest.fail.Exception:
        pytest.fail("no data for:\n" + "\n".join(missing))


def test_variables_of_the_dashboards_have_values(filled_prometheus, api, filled_in, wait_until):
    for name, board in DASHBOARDS.items():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
            url = f"{filled_prometheus}/api/v1/label/{label}/values?match[]={_quoted(filled_in(selector))}"
            assert wait_until(lambda url=url: api(url)["data"]), f"{name}: {variable['name']}"


def _quoted(text):
    from urllib.parse import quote

    return quote(text)


def test_a_histogram_leads_to_traces_through_exemplars(filled_prometheus, api, wait_until):
    selector = _quoted("rl_insight_monitor_span_duration_seconds_bucket")

    def exemplars():
        found = api(f"{filled_prometheus}/api/v1/query_exemplars?query={selector}&start=0&end=9999999999")["data"]
        return [exemplar for series in found for exemplar in series["exemplars"]]

    first = wait_until(exemplars)[0]
    assert re.fullmatch(r"[0-9a-f]{32}", first["labels"]["trace_id"])


TRACEQL_TOKENS = re.compile(
    r"""\s*(?:
      (?P<string>"(?:[^"\\]|\\.)*")
    | (?P<duration>\d+(?:\.\d+)?(?:ns|us|ms|s|m|h))
    | (?P<number>\d+(?:\.\d+)?)
    | (?P<name>(?:span|resource)\.[A-Za-z_][\w.]*|[A-Za-z_]\w*)
    | (?P<operator>=~|!~|!=|>=|<=|&&|\|\||[=<>])
    | (?P<mark>[{}()|,])
    )""",
    re.VERBOSE,
)


class TraceQl:
    """Reads the part of TraceQL that the dashboards use: `{ condition && ... } | select(attribute, ...)`."""

    def __init__(self, text):
        self.tokens = []
        position = 0
        while position < len(text.rstrip()):
            match = TRACEQL_TOKENS.match(text, position)
            assert match, f"cannot read {text[position:]!r}"
            self.tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()
        self.attributes = []
        self._take("mark", "{")
        self._condition()
        while self._peek() == ("operator", "&&") or self._peek() == ("operator", "||"):
            self.tokens.pop(0)
            self._condition()
        self._take("mark", "}")
        if self.tokens:
            self._take("mark", "|")
            self._take("name", "select")
            self._take("mark", "(")
            self._attribute()
            while self._peek() == ("mark", ","):
                self.tokens.pop(0)
                self._attribute()
            self._take("mark", ")")
        assert not self.tokens

    def _peek(self):
        return self.tokens[0] if self.tokens else (None, None)

    def _take(self, kind, value=None):
        found = self.tokens.pop(0) if self.tokens else (None, None)
        assert found[0] == kind, f"expected {value or kind}, found {found[1]!r}"
        assert value in {None, found[1]}, f"expected {value!r}, found {found[1]!r}"
        return found[1]

    def _attribute(self):
        name = self._take("name")
        assert name.startswith(("span.", "resource.")) or name in {"name", "status", "duration", "kind"}, name
        self.attributes.append(name)

    def _condition(self):
        self._attribute()
        operator = self._take("operator")
        assert operator in {"=", "!=", "=~", "!~", ">", "<", ">=", "<="}
        kind, value = self.tokens.pop(0)
        assert kind in {"string", "duration", "number", "name"}
        if operator in {"=~", "!~"}:
            re.compile(json.loads(value))


class TraceReceiver:
    """Takes OTLP traces over HTTP, and keeps the names of the attributes that came."""

    def __init__(self):
        self.names = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    receiver.names |= {f"resource.{one.key}" for one in resource.resource.attributes}
                    spans = [span for scope in resource.scope_spans for span in scope.spans]
                    receiver.names |= {f"span.{one.key}" for span in spans for one in span.attributes}
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture(scope="module")
def exported_names(fake_run):
    """The attributes on the spans of a run, as they leave for Tempo."""
    receiver = TraceReceiver()
    collector = InProcessCollector([OtlpTraceSink(receiver.url)])
    for batch in fake_run().tick():
        collector.accept(batch)
    assert collector.wait_idle(20.0)
    collector.close()
    receiver.close()
    return receiver.names


@pytest.mark.parametrize("text", TRACEQL)
def test_traceql_can_be_read_and_names_attributes_that_are_exported(text, filled_in, exported_names):
    read = TraceQl(filled_in(text))
    by_the_user = {"span.reward", "span.tokens"}
    assert set(read.attributes) <= exported_names | by_the_user | {"name"}


@pytest.mark.parametrize(
    "text", ["{", '{span.a="b"', '{span.a=~"("}', '{a="b"}', '{span.a="b"} | select()', '{span.a "b"}']
)
def test_the_check_of_traceql_refuses_what_is_wrong(text):
    with pytest.raises((AssertionError, re.error)):
        TraceQl(text)


def test_the_namespace_of_the_server_reaches_the_dashboards():
    text = "".join(dashboard_files("mine").values())
    assert "rl_insight_monitor_" not in text
    assert "mine_state_seconds_total" in text
    assert '"expr": "max(current_step{' in dashboard_files("")["rl-insight-overview.json"]
