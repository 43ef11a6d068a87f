"""The dashboards: generated from code, complete, and in the languages of their data sources."""

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


def test_metrics_about_the_server_are_those_that_it_shows():
    used = {match for text in PROMQL for match in re.findall(r"rl_insight_monitor_(server_\w+)", text)}
    assert used
    assert used <= {declared.exposed_name for declared in SERVER.declarations}


@pytest.fixture(scope="module")
def mistakes():
    """Tell where Grafana's own grammar finds searches wrong: one list for each of them."""
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
