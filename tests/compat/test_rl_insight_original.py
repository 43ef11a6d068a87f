"""The same calls with rl-insight 0.3.0 and with ours."""

from __future__ import annotations

import re
from math import isnan

import pytest

PROGRAM = "insight_calls.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from tests.compat.conftest import Programs

    programs = Programs(tmp_path_factory.mktemp("home"))
    return {which: programs.run(PROGRAM, which, original="rl-insight") for which in ("original", "ours")}


def test_every_call_answers_the_same(runs):
    for part in ("off", "calls", "again"):
        assert runs["ours"][part] == runs["original"][part]
    assert runs["ours"]["lost"] == {}


def exposed(event: dict) -> tuple:
    """Return a metric event of 0.3.0 as its page shows it; Prometheus knows no empty labels."""
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
        assert helps[name.removesuffix("_total")] == event["documentation"].replace("@", "_")


def test_spans_have_the_same_names_and_attributes(runs):
    theirs = [event for event in runs["original"]["events"] if event["kind"] == "trace"]
    ours = runs["ours"]["spans"]
    assert [span[0] for span in ours] == [event["name"] for event in theirs]
    for (_, start, end, attributes, resource), event in zip(ours, theirs, strict=True):
        expected = {key: value for key, value in event["attributes"].items() if key != "process_id"}
        assert {key: attributes.get(key) for key in expected} == expected
        assert end - start >= 0
        assert resource["service.name"] == "rl_insight_monitor"


def test_the_agent_session_is_a_session_of_ours(runs):
    session, other = runs["ours"]["sessions"]
    assert (session["session_id"], session["status"], session["reward"]) == ("s9", "failed", 0.25)
    assert list(session["phases"]) == ["gateway_generation"]
    assert other["status"] == "rejected"
