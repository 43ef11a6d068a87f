"""The same calls with rl-insight 0.3.0 and with ours."""

from __future__ import annotations

import json
import re
from math import isnan

import pytest

import rl_insight as insight
from rl_insight.collector import Collector
from rl_insight.schema import encode
from rl_insight.testing import capture
from tests.compat.conftest import Programs

PROGRAM = "insight_calls.py"
DASHBOARDS = "rl_insight/config/services/grafana/dashboards"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    programs = Programs(tmp_path_factory.mktemp("home"))
    return {which: programs.run(PROGRAM, which, original="rl-insight") for which in ("original", "ours")}


def test_every_call_answers_the_same(runs):
    for part in ("off", "off_op", "calls", "again"):
        assert runs["ours"][part] == runs["original"][part]
    assert runs["ours"]["lost"] == {"labels/extra_labels_failed": 1, "attributes/reserved": 1}


def exposed(event: dict) -> tuple:
    """Return a metric event of 0.3.0 as on its page; Prometheus has no empty labels."""
    name = "rl_insight_monitor_" + re.sub(r"[^a-zA-Z0-9_]", "_", event["name"])
    if event["kind"] == "counter" and not name.endswith("_total"):
        name += "_total"
    labels = {key: str(value) for key, value in event["labels"].items() if value != ""}
    return name, tuple(sorted(labels.items()))


def test_metrics_have_the_same_series_with_the_runs_id_added(runs):
    events = [event for event in runs["original"]["events"] if event["kind"] in ("gauge", "counter")]
    theirs = {exposed(event): event["value"] for event in events}
    ours = {}
    for name, labels, value in runs["ours"]["page"]["samples"]:
        if "run_id" in labels and not name.startswith("rl_insight_monitor_latency_ms"):
            ours[name, tuple(sorted((key, text) for key, text in labels.items() if key != "run_id"))] = value
    assert set(ours) == set(theirs)
    for key, value in theirs.items():
        if key[0].endswith("_unixtime"):
            assert abs(ours[key] - value) < 120
        else:
            assert ours[key] == value or (isnan(ours[key]) and isnan(value))


def test_metrics_have_the_same_help(runs):
    helps = runs["ours"]["page"]["help"]
    for event in runs["original"]["events"]:
        if event["kind"] == "trace":
            continue
        name, _ = exposed(event)
        # `done` and `done_total` are one counter here.
        assert helps[name.removesuffix("_total")] == event["documentation"].replace("@", "_").removesuffix("_total")


def test_spans_have_the_same_names_and_attributes(runs):
    theirs = [event for event in runs["original"]["events"] if event["kind"] == "trace"]
    ours = runs["ours"]["spans"]
    assert [span[0] for span in ours] == [event["name"] for event in theirs]
    for (_, start, end, attributes, resource), event in zip(ours, theirs, strict=True):
        expected = dict(event["attributes"])
        if expected.get("process_id") == runs["original"]["pid"]:  # here, also by its host and start
            expected["process_id"] = resource["service.instance.id"]
        if expected.get("state_lane_id") == runs["original"]["pid"]:
            expected["state_lane_id"] = runs["ours"]["pid"]
        assert {key: attributes.get(key) for key in expected} == expected
        assert end - start >= 0
        assert resource["service.name"] == "rl_insight_monitor"


def test_spans_are_internal(runs):
    assert runs["ours"]["span_kinds"] == [1]


def test_finish_forgets_open_lanes_and_may_come_from_a_destructor(programs):
    theirs, ours = (programs.run("insight_life.py", which, original="rl-insight") for which in ("original", "ours"))
    assert ours == theirs


def test_the_agent_session_is_a_session_of_ours(runs):
    session, other = runs["ours"]["sessions"]
    assert (session["session_id"], session["status"], session["reward"]) == ("s9", "failed", 0.25)
    assert list(session["phases"]) == ["gateway_generation"]
    assert other["status"] == "rejected"


@pytest.fixture(scope="module")
def queries(tmp_path_factory):
    """The queries of each published dashboard."""
    folder = Programs(tmp_path_factory.mktemp("home")).original("rl-insight") / DASHBOARDS
    found = {path.stem: sorted(set(texts_of(json.loads(path.read_text())))) for path in folder.glob("*/*.json")}
    assert len(found) == 5
    return found


class TestPublishedDashboards:
    """The dashboards of 0.3.0 find their data: they are read from the original and evaluated over our output."""

    VARIABLES = {"project": "math", "experiment": "grpo", "experiment_name": "grpo", "step": "7", "sample": "3",
                 "session": "sample=3/session=0", "traj": "0"}  # fmt: skip

    def filled(self, query):
        return re.sub(r"\$\{?(\w+)\}?", lambda match: self.VARIABLES.get(match[1], match[0]), query)

    def test_variables_of_the_agent_loop_find_our_series(self, runs, queries):
        samples = runs["ours"]["page"]["samples"]
        selectors = [
            match
            for query in queries["agent_loop_trajectory"]
            for match in re.findall(r"(rl_insight_monitor_\w+)(?:\{(.*?)\})?", self.filled(query))
        ]
        assert len({name for name, _ in selectors}) == 4
        for name, conditions in selectors:
            found = [labels for one, labels, _ in samples if one == name and fits(labels, conditions)]
            assert found, (name, conditions)
            assert any({"project", "experiment_name", "global_steps", "title"} <= labels.keys() for labels in found)

    def test_trace_panels_of_the_agent_loop_find_our_spans(self, runs, queries):
        panels = [query for query in queries["agent_loop_trajectory"] if query.startswith("{")]
        assert len(panels) == 4
        names = set()
        for panel in panels:
            where, _, selected = self.filled(panel).partition("} | select(")
            turns = {"traj": "2"} if "traj=0" in where else {}
            where = where.replace("traj=0", f"traj={turns.get('traj', '.*')}")  # the turn is on a lane of its own
            found = [span for span in runs["ours"]["spans"] if all(holds(span, one) for one in where[1:].split(" && "))]
            assert found, where
            names |= {span[0] for span in found}
            assert selected
        assert names == {"gateway_generation", "agent_task", "agent_session"}

    def test_the_quick_start_finds_its_series_and_states(self, queries):
        found = queries["quick_start_demo"]
        names = {name for query in found for name in re.findall(r"rl_insight_monitor_\w+", query)}
        assert '{span.state_lane_id!=""}' in "".join(found).replace(" ", "")
        with capture() as captured:
            insight.metric_count("train_step_total", amount=1, worker="trainer_0")
            insight.metric_gauge("reward_mean", 1.23, worker="trainer_0")
            insight.metric_histogram("step_latency_ms", 42.5, worker="trainer_0")
            captured.flush()
            batches = captured._pipeline.transport.batches
        collector = Collector()
        for batch in batches:
            collector.ingest(encode(batch))
        page = collector.metrics_page("text/plain")[0].decode()
        assert len(names) == 3
        assert {name for name in names if f"\n{name}{{worker=" not in page} == set()

    def test_every_state_has_a_lane_to_select(self, runs, queries):
        panels = {query.replace(" ", "").partition("}")[0] for found in queries.values() for query in found}
        assert '{span.state_lane_id!=""' in panels
        states = [attributes for *_, attributes, _ in runs["ours"]["spans"] if "state_name" in attributes]
        assert len(states) == 4
        assert all(attributes["state_lane_id"] for attributes in states)

    def test_projects_are_values_of_a_label_of_all_our_series(self, runs, queries):
        texts = [query for found in queries.values() for query in found]
        assert any("label_values({__name__=~" in text and text.endswith("project)") for text in texts)
        samples = runs["ours"]["page"]["samples"]
        mine = [labels for name, labels, _ in samples if name.startswith("rl_insight_monitor_") and "run_id" in labels]
        assert {labels["project"] for labels in mine} == {"math"}

    def test_every_metric_of_the_verl_dashboards_is_found_by_project_and_experiment(self, queries):
        names = {
            name
            for dashboard, found in queries.items()
            for query in found
            for name in re.findall(r"rl_insight_monitor_(\w+)\{project=~", query)
            if dashboard.startswith("verl")
        }
        assert len(names) > 90
        with capture({"project": "math", "experiment_name": "grpo"}) as captured:
            for name in sorted(names):
                insight.metric_gauge(name, 1.0)
            captured.flush()
            batches = captured._pipeline.transport.batches
        collector = Collector()
        for batch in batches:
            collector.ingest(encode(batch))
        page = collector.metrics_page("text/plain")[0].decode()
        for name in names:
            line = next(line for line in page.splitlines() if line.startswith(f"rl_insight_monitor_{name}{{"))
            assert 'project="math"' in line
            assert 'experiment_name="grpo"' in line


def texts_of(node):
    """Yield the queries in a dashboard, in panels and in variables."""
    if isinstance(node, list):
        node = dict(enumerate(node))
    if isinstance(node, dict):
        for key, value in node.items():
            if isinstance(value, str) and key in {"expr", "query"} and value.strip():
                yield value
            else:
                yield from texts_of(value)


def fits(labels, conditions):
    """Return whether labels match a PromQL selector."""
    for name, operator, value in re.findall(r'(\w+)\s*(=~|=)\s*"([^"]*)"', conditions):
        text = labels.get(name, "")
        if not (re.fullmatch(value, text) if operator == "=~" else text == value):
            return False
    return True


def holds(span, condition):
    """Return whether a span matches a TraceQL condition; a missing attribute, or one of another type, never does."""
    _, _, _, attributes, resource = span
    name, operator, value = re.fullmatch(r"(\S+?)\s*(=~|>=|!=|=)\s*(.*)", condition.strip()).groups()
    scope, _, key = name.partition(".")
    found = (resource if scope == "resource" else attributes).get(key)
    if found is None:
        return False
    if value.startswith('"'):
        text = value.strip('"')
        return isinstance(found, str) and bool(re.fullmatch(text, found) if operator == "=~" else found == text)
    is_number = isinstance(found, (int, float)) and not isinstance(found, bool)
    return is_number and (found >= float(value) if operator == ">=" else found == float(value))
