"""The dashboards and rules on a real training run: every expression finds data, every page is valid."""

from __future__ import annotations

import gzip
import json
import math
import re
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import quote

import pytest
import yaml
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families

from rl_insight.collector.derived import DECLARATIONS
from rl_insight.server.metrics import SERVER
from rl_insight.stack import stack_status
from rl_insight.stack.render import dashboard_files, fill, package_files

# All share one training, so they run in one place, one after another.
pytestmark = pytest.mark.xdist_group("demo-stack")

DASHBOARDS = {name: json.loads(text) for name, text in dashboard_files().items()}
TARGETS = [target for board in DASHBOARDS.values() for panel in board["panels"] for target in panel["targets"]]
PROMQL = sorted({target["expr"] for target in TARGETS if "expr" in target})
TRACEQL = sorted({target["query"] for target in TARGETS if "query" in target})
RULES = package_files("rules") / "rl-insight.yml"


class TraceReceiver:
    """Receives OTLP traces over HTTP, and stores the names of attributes, and the types of span attributes."""

    def __init__(self):
        self.names = set()
        self.types = set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    receiver.names |= {f"resource.{one.key}" for one in resource.resource.attributes}
                    spans = [span for scope in resource.scope_spans for span in scope.spans]
                    receiver.names |= {f"span.{one.key}" for span in spans for one in span.attributes}
                    receiver.types |= {
                        (one.key, one.value.WhichOneof("value")) for span in spans for one in span.attributes
                    }
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
def receiver():
    found = TraceReceiver()
    yield found
    found.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory, new_demo_stack, receiver, prometheus_program):
    """A server scraped by a real Prometheus, and the example training."""
    found = new_demo_stack(
        tmp_path_factory.mktemp("demo"),
        "stack.tempo.enabled=false",
        "stack.grafana.enabled=false",
        f"sinks.otlp.endpoint={receiver.url}",
        "sinks.otlp.signals=[traces]",
    )
    yield found
    found.close()


@pytest.fixture(scope="module")
def prometheus(demo):
    return demo.urls["prometheus"]


def has_data(results):
    return any(not math.isnan(value) for _, value in results)


def wait_for_all(expressions, prometheus, query, wait_until):
    """Wait until each expression has found data once; fails with those that find none."""
    missing = list(expressions)

    def try_all():
        missing[:] = [text for text in missing if not has_data(query(prometheus, text))]
        return not missing

    try:
        wait_until(try_all, 90.0)
    except pytest.fail.Exception:
        pytest.fail("no data for:\n" + "\n".join(missing))


def test_every_expression_of_the_dashboards_finds_data(prometheus, query, filled_in, wait_until):
    wait_for_all(map(filled_in, PROMQL), prometheus, query, wait_until)


def test_every_link_from_a_trace_to_metrics_finds_data(prometheus, query, wait_until):
    text = fill(
        "datasources.yml", {"namespace": "rl_insight_monitor_"}, prometheus_url="", tempo_url="", scrape_interval=""
    )
    (tempo,) = [one for one in yaml.safe_load(text)["datasources"] if one["uid"] == "tempo"]
    # A doubled dollar sign is how the file writes one.
    queries = [
        one["query"].replace("$$__tags", 'role="rollout"').replace("$${__span.name}", "generate")
        for one in tempo["jsonData"]["tracesToMetrics"]["queries"]
    ]
    assert queries
    wait_for_all(queries, prometheus, query, wait_until)


@pytest.mark.slow
def test_both_sides_of_every_rule_find_data(prometheus, query, api, wait_until):
    """A silent alert has no data, but the series that it compares must have some."""
    rules = [rule for group in api(f"{prometheus}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    assert rules
    assert {rule["health"] for rule in wait_until(lambda: evaluated(api, prometheus))} == {"ok"}
    sides = {side.strip() for rule in rules for side in re.split(r" (?:<|>) | and on \([^)]*\) | or ", rule["query"])}
    wait_for_all([side for side in sides if "rl_insight_monitor" in side], prometheus, query, wait_until)


def evaluated(api, prometheus):
    rules = [rule for group in api(f"{prometheus}/api/v1/rules")["data"]["groups"] for rule in group["rules"]]
    return rules if all(rule["health"] != "unknown" for rule in rules) else None


def test_variables_of_the_dashboards_have_values(prometheus, api, filled_in, wait_until):
    for name, board in DASHBOARDS.items():
        for variable in board["templating"]["list"]:
            if variable["type"] != "query":
                continue
            selector, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]).groups()
            url = f"{prometheus}/api/v1/label/{label}/values?match[]={quote(filled_in(selector))}"
            assert wait_until(lambda url=url: api(url)["data"]), f"{name}: {variable['name']}"


def test_histograms_lead_to_traces_through_exemplars(prometheus, api, wait_until):
    selector = quote("rl_insight_monitor_span_duration_seconds_bucket")

    def exemplars():
        found = api(f"{prometheus}/api/v1/query_exemplars?query={selector}&start=0&end=9999999999")["data"]
        return [exemplar for series in found for exemplar in series["exemplars"]]

    first = wait_until(exemplars)[0]
    assert re.fullmatch(r"[0-9a-f]{32}", first["labels"]["trace_id"])


def test_prometheus_refuses_no_exemplar(demo, prometheus, api, wait_until):
    """One that goes back in time would be rejected, with a warning, at each later scrape."""
    test_histograms_lead_to_traces_through_exemplars(prometheus, api, wait_until)
    (log,) = [service.log for service in stack_status(demo.data).services if service.name == "prometheus"]
    assert [line for line in Path(log).read_text().splitlines() if "out-of-order exemplars" in line] == []


def test_promtool_finds_nothing_to_say_about_the_metrics(demo, wait_until):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("the program promtool is not installed")
    derived = {declared.kind.exposed_name("", declared.name) for declared in DECLARATIONS}
    wanted = {f"rl_insight_monitor_{name}" for name in derived | {"node_up", "reward_mean"}}
    # Shown from the first refusal on.
    server = {declared.kind.exposed_name("", declared.name) for declared in SERVER.declarations} - {
        "server_refused_total"
    }
    always = {f"rl_insight_monitor_{name}" for name in server}
    page = wait_until(lambda: shown_with(demo, wanted | always), 60.0)
    done = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
    # verl, vLLM and TransferQueue chose these names.
    theirs = re.compile(r"rl_insight_monitor_(perf|timing|tq|vllm)_\w+ ")
    assert [line for line in (done.stdout + done.stderr).splitlines() if not theirs.match(line)] == []


def test_the_openmetrics_page_of_a_whole_run_is_valid_and_carries_exemplars(demo, wait_until):
    def exemplars():
        page = demo.metrics("application/openmetrics-text")
        families = {family.name: family for family in openmetrics_families(page)}
        assert families["rl_insight_monitor_samples"].type == "counter"
        durations = families.get("rl_insight_monitor_span_duration_seconds")
        return [sample.exemplar for sample in durations.samples if sample.exemplar] if durations else []

    for exemplar in wait_until(exemplars, 60.0):
        assert re.fullmatch(r"[0-9a-f]{32}", exemplar.labels["trace_id"])


def shown_with(demo, names):
    page = demo.metrics()
    shown = set(re.findall(r"^# TYPE (\w+)", page, re.MULTILINE))
    return page if names <= shown else None


def test_rules_name_metrics_that_the_server_shows(demo, wait_until):
    names = set(re.findall(r"rl_insight_monitor_\w+", RULES.read_text()))
    families = {re.sub(r"_(sum|count|bucket)$", "", name) for name in names}
    assert families
    assert wait_until(lambda: shown_with(demo, families), 60.0)


def test_searches_name_attributes_that_are_exported(demo, receiver, wait_until):
    by_the_user = {"span.reward", "span.tokens"}
    used = {name for text in TRACEQL for name in re.findall(r"\b((?:span|resource)\.[A-Za-z_.]+)", text)}
    assert used
    wait_until(lambda: used - by_the_user <= receiver.names, 60.0)


def test_a_reward_has_one_type_in_all_spans(demo, receiver, wait_until):
    """Grafana infers the type of a column from one value; the run has a reward that is the integer 1."""
    wait_until(lambda: "span.reward" in receiver.names, 60.0)
    assert {kind for key, kind in receiver.types if key == "reward"} == {"double_value"}
