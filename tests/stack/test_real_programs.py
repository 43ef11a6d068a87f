"""The whole stack with the real Tempo and Grafana.

`RL_INSIGHT_TEST_TEMPO` and `RL_INSIGHT_TEST_GRAFANA` hold the paths of the programs. Prometheus is the one on PATH.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
import urllib.error
import urllib.parse

import pytest

from rl_insight.collector.sinks.otlp import OtlpTraceSink
from rl_insight.stack import MetricsEndpointOfServer, stack_status, start_stack
from rl_insight.stack.render import Layout, dashboard_files

TEMPO = os.environ.get("RL_INSIGHT_TEST_TEMPO")
GRAFANA = os.environ.get("RL_INSIGHT_TEST_GRAFANA")
BOARDS = {name: json.loads(text) for name, text in dashboard_files().items()}
TARGETS = [
    pytest.param(target, id=f"{name.removesuffix('.json')}: {panel['title']} {target['refId']}")
    for name, board in BOARDS.items()
    for panel in board["panels"]
    for target in panel["targets"]
]

pytestmark = [
    pytest.mark.skipif(TEMPO is None, reason="RL_INSIGHT_TEST_TEMPO does not name a Tempo"),
    pytest.mark.xdist_group("real-stack"),
]
needs_grafana = pytest.mark.skipif(GRAFANA is None, reason="RL_INSIGHT_TEST_GRAFANA does not name a Grafana")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def stack(directory, new_live_collector, engine_exporter, settings, prometheus_program):
    """All that there is, started by the stack and fed by a run."""
    port = free_port()
    live = new_live_collector([OtlpTraceSink(f"http://127.0.0.1:{port}", name="tempo", retry_for_s=120)])
    book = {"version": 1, "targets": [
        {"url": f"http://{engine_exporter.address}/metrics", "job_name": "engines", "run_id": "demo-1"}
    ]}  # fmt: skip
    (directory / "targets.json").write_text(json.dumps(book))
    chosen = settings(
        tempo__enabled=True,
        tempo__binary_path=TEMPO,
        tempo__otlp_http_port=port,
        grafana__enabled=GRAFANA is not None,
        grafana__binary_path=GRAFANA,
        ready_timeout_s=180.0,
    )
    try:
        with start_stack(chosen, directory, MetricsEndpointOfServer(live.url)) as running:
            yield running
    finally:
        live.close()


def test_every_service_is_ready(stack, directory):
    services = stack_status(directory).services
    assert [service.name for service in services] == list(stack.urls)
    assert all(service.ready for service in services)


@pytest.mark.parametrize("query", sorted({one.values[0]["query"] for one in TARGETS if "query" in one.values[0]}))
def test_tempo_answers_every_search_of_the_dashboards(stack, api, filled_in, wait_until, query):
    words = urllib.parse.urlencode({"q": filled_in(query), "limit": 20})
    assert wait_until(lambda: api(f"{stack.urls['tempo']}/api/search?{words}").get("traces"), 90.0)


def test_a_new_span_is_found_soon(stack, api, wait_until):
    query = '{span.state_lane_id!=""} | select(span.state_lane_id, span.state_name)'
    since = int(time.time())
    words = urllib.parse.urlencode({"q": query, "start": since, "end": since + 600, "limit": 5})
    assert wait_until(lambda: api(f"{stack.urls['tempo']}/api/search?{words}").get("traces"), 60.0)


@pytest.fixture
def grafana(stack, directory, api):
    """Ask Grafana as its administrator."""
    password = Layout(directory).password_file.read_text()
    key = base64.b64encode(f"admin:{password}".encode()).decode()

    def ask(path, content=None):
        data = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"Basic {key}", "Content-Type": "application/json"}
        return api(f"{stack.urls['grafana']}{path}", data, headers)

    return ask


def tried(call):
    """The result of a call, or None while the other end cannot answer yet."""
    try:
        return call()
    except urllib.error.HTTPError as error:
        error.close()
        return None


@needs_grafana
@pytest.mark.parametrize("uid", ["prometheus", "tempo"])
def test_the_data_sources_are_healthy(grafana, wait_until, uid):
    answer = wait_until(lambda: tried(lambda: grafana(f"/api/datasources/uid/{uid}/health")), 60.0)
    assert answer["status"] == "OK"


@needs_grafana
def test_all_dashboards_are_loaded(grafana, wait_until):
    wanted = {name.removesuffix(".json") for name in BOARDS}
    wait_until(lambda: wanted <= {found["uid"] for found in grafana("/api/search?type=dash-db&limit=100")}, 60.0)
    for uid in wanted:
        board = grafana(f"/api/dashboards/uid/{uid}")
        assert len(board["dashboard"]["panels"]) == len(BOARDS[f"{uid}.json"]["panels"])


@needs_grafana
def test_links_lead_from_metrics_to_traces_and_back(grafana):
    prometheus = grafana("/api/datasources/uid/prometheus")["jsonData"]
    assert prometheus["exemplarTraceIdDestinations"][0]["datasourceUid"] == "tempo"
    tempo = grafana("/api/datasources/uid/tempo")["jsonData"]
    assert tempo["tracesToMetrics"]["datasourceUid"] == "prometheus"
    assert "$__tags" in tempo["tracesToMetrics"]["queries"][0]["query"]


@needs_grafana
@pytest.mark.parametrize("target", TARGETS)
def test_every_query_of_a_panel_returns_data(grafana, filled_in, wait_until, target):
    if "query" in target:
        words = urllib.parse.urlencode({"q": filled_in(target["query"]), "limit": 20})
        path = f"/api/datasources/proxy/uid/tempo/api/search?{words}"
        assert wait_until(lambda: (tried(lambda: grafana(path)) or {}).get("traces"), 90.0)
        return
    query = {
        **target,
        "expr": filled_in(target["expr"]),
        "datasource": {"type": "prometheus", "uid": "prometheus"},
        "intervalMs": 1000,
        "maxDataPoints": 200,
    }

    def values():
        content = {"queries": [query], "from": "now-5m", "to": "now"}
        frames = grafana("/api/ds/query", content)["results"][target["refId"]]["frames"]
        return [frame for frame in frames if frame["data"]["values"] and frame["data"]["values"][0]]

    assert wait_until(values, 90.0)
