"""The dashboards: generated from code, complete, and valid in the languages of their data sources."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from rl_insight.server.metrics import SERVER
from rl_insight.stack.render import dashboard_files

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
        for name in (
            "overview",
            "timeline",
            "sessions",
            "hotspots",
            "hardware",
            "collector",
            "vllm",
            "sglang",
            "transferqueue",
            "verl",
            "agent-loops",
        )
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
    titles = [panel["title"] for panel in panels]
    assert sorted(titles) == sorted(set(titles)), "two panels have one name"
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


def test_no_two_series_of_a_graph_have_one_legend():
    """A legend names every label that the expression keeps: an instance may have several engines."""
    for name, panel in PANELS:
        for target in panel["targets"] if panel["type"] == "timeseries" else ():
            kept = re.match(r"(?:\w+ by|histogram_quantile\([\d.]+, \w+ by) \(([^)]*)\)", target["expr"])
            labels = set(kept[1].split(", ")) - {"le"} if kept else set()
            assert labels <= set(re.findall(r"{{(\w+)}}", target["legendFormat"])), f"{name} {panel['title']}"


def test_metrics_about_the_server_are_those_that_it_shows():
    used = {match for text in PROMQL for match in re.findall(r"rl_insight_monitor_(server_\w+)", text)}
    assert used
    assert used <= {declared.kind.exposed_name("", declared.name) for declared in SERVER.declarations}


@pytest.fixture(scope="module")
def mistakes():
    """Return the positions of errors in each search, according to Grafana's own grammar."""
    node = shutil.which("node")
    if node is None or not (ROOT / "web" / "node_modules" / "@grafana" / "lezer-traceql").is_dir():
        pytest.skip("the grammar of TraceQL is not installed: `make web` installs it, where npm is")
    script = Path(__file__).with_name("parse_traceql.mjs")

    def check(texts):
        done = subprocess.run(
            [node, str(script), str(ROOT)], input=json.dumps(texts), capture_output=True, text=True, check=True
        )
        return json.loads(done.stdout)

    return check


def test_every_search_is_traceql(mistakes, filled_in):
    searches = [filled_in(text) for text in TRACEQL]
    assert dict(zip(searches, mistakes(searches), strict=True)) == {text: [] for text in searches}
    for text in searches:
        for pattern in re.findall(r"[=!]~(\"[^\"]*\")", text):
            re.compile(json.loads(pattern))


def test_the_check_of_traceql_refuses_what_is_wrong(mistakes):
    wrong = ["{", '{span.a="b"', '{a="b"}', '{span.a="b"} | select()', '{span.a "b"}', '{span.a="b"} || {']
    assert [text for text, found in zip(wrong, mistakes(wrong), strict=True) if not found] == []


def test_the_namespace_of_the_server_reaches_the_dashboards():
    text = "".join(dashboard_files("mine").values())
    assert "rl_insight_monitor_" not in text
    assert "mine_state_seconds_total" in text
    assert '"expr": "max(current_step{' in dashboard_files("")["rl-insight-overview.json"]


ENGINE_NAMES = {
    "vllm": """
        num_requests_running num_requests_waiting num_requests_waiting_by_reason kv_cache_usage_perc engine_sleep_state
        generation_tokens_total prompt_tokens_total prompt_tokens_by_source_total prompt_tokens_cached_total
        time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket
        request_time_per_output_token_seconds_bucket request_queue_time_seconds_bucket
        request_prefill_time_seconds_bucket request_decode_time_seconds_bucket request_inference_time_seconds_bucket
        request_prompt_tokens_bucket request_generation_tokens_bucket request_prefill_kv_computed_tokens_bucket
        prefix_cache_hits_total prefix_cache_queries_total num_preemptions_total request_success_total
        iteration_tokens_total_bucket spec_decode_num_accepted_tokens_total spec_decode_num_draft_tokens_total
        corrupted_requests_total cache_config_info kv_block_lifetime_seconds_bucket
        kv_block_idle_before_evict_seconds_bucket kv_block_reuse_gap_seconds_bucket estimated_flops_per_gpu_total
    """,
    "sglang": """
        num_running_reqs num_queue_reqs token_usage full_token_usage generation_tokens_total prompt_tokens_total
        time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket e2e_request_latency_seconds_bucket
        cache_hit_rate gen_throughput num_used_tokens num_requests_total num_retracted_requests_total num_paused_reqs
        queue_time_seconds_bucket per_stage_req_latency_seconds_bucket num_aborted_requests_total utilization
        weight_load_duration_seconds forward_execution_seconds_total realtime_tokens_total spec_accept_rate
        spec_accept_length cached_tokens_total evicted_tokens_total lora_pool_utilization is_cuda_graph fwd_occupancy
        request_time_per_output_token_seconds_bucket
    """,
}
PREFIXES = {"vllm": ("vllm:", "ray_vllm_"), "sglang": ("sglang:",)}
REMOVED = ("vllm:gpu_cache_usage_perc", "vllm:time_per_output_token_seconds_bucket",
           "sglang:time_per_output_token_seconds_bucket")  # fmt: skip


def engine_expressions(engine):
    return [target["expr"] for name, _, target in TARGETS if name == f"rl-insight-{engine}.json"]


def shows(expression, name):
    return any(re.fullmatch(pattern, name) for pattern in re.findall(r'__name__=~"([^"]+)"', expression))


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (engine, f"{prefix}{name}")
        for engine, names in ENGINE_NAMES.items()
        for name in names.split()
        for prefix in PREFIXES[engine]
    ],
)
def test_every_metric_of_an_engine_is_shown(engine, name):
    assert any(shows(expression, name) for expression in engine_expressions(engine))


@pytest.mark.parametrize("name", REMOVED)
def test_removed_names_are_fallbacks_only(name):
    found = [expression for expression in engine_expressions(name.partition(":")[0]) if shows(expression, name)]
    assert found
    for expression in found:
        newer, _, older = expression.partition(" or ")
        assert shows(older, name)
        assert not shows(newer, name)


@pytest.mark.parametrize("engine", ENGINE_NAMES)
def test_lines_of_engines_behind_one_address_have_different_names(engine):
    by_engine = [
        target["legendFormat"]
        for name, _, target in TARGETS
        if name == f"rl-insight-{engine}.json" and "by (instance, engine" in target["expr"]
        and not target["expr"].startswith(("sum(sum", "sum(max", "avg("))
    ]  # fmt: skip
    assert by_engine
    if engine == "vllm":
        assert all("{{engine}}" in legend for legend in by_engine)
