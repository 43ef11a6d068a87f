"""`rl-insight diagnose`: findings as text and as JSON, with an exit code for scripts."""

from __future__ import annotations

import json
import os

import msgspec
import pytest

from benchmarks.diagnosis_runs import SHAPES
from benchmarks.diagnosis_script import RUN_ID, Script
from rl_insight.cli import main
from rl_insight.config.paths import STATE_FILE
from rl_insight.server.state import ServerRecord
from rl_insight.store import RunDirectory


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """A data directory with one run whose gradient becomes infinite at step 150."""
    directory = tmp_path_factory.mktemp("data")
    runs = RunDirectory(directory, min_free_bytes=0)
    with runs.open(RUN_ID, create=True) as store:
        SHAPES["sft"](Script(1), store, "non_finite")
    runs.close()
    return directory


@pytest.fixture(autouse=True)
def environment(data_dir, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(data_dir))


def test_findings_are_said_with_what_to_do(capsys):
    assert main(["diagnose", RUN_ID]) == 0
    said = capsys.readouterr().out
    assert "CRITICAL  train/grad_norm is not a number at step 150" in said
    assert "What to do:" in said
    assert "rules could not be evaluated" in said


def test_the_run_is_a_word_or_an_option_and_not_both(capsys):
    assert main(["diagnose", "--run", RUN_ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"]
    assert main(["diagnose", RUN_ID, "--run", "other"]) == 2
    assert f"give one run, not both '{RUN_ID}' and --run other." in capsys.readouterr().err


@pytest.mark.parametrize(("severity", "code"), [("critical", 1), ("info", 1)])
def test_a_script_can_fail_on_a_severity(capsys, severity, code):
    assert main(["diagnose", "--json", "--fail-on", severity]) == code
    told = json.loads(capsys.readouterr().out)
    assert [finding["rule"] for finding in told["findings"]] == ["non_finite"]
    assert told["findings"][0]["culprit"]["rank"] == 0
    assert any(one["rule"] == "stuck_engine" for one in told["coverage"])


def test_before_its_step_the_fault_is_not_there(capsys):
    assert main(["diagnose", "--json", "--at", "140", "--fail-on", "info"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_only_the_rules_that_are_asked_for(capsys):
    assert main(["diagnose", "--json", "--rules", "straggler,slow_tool"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_a_muted_rule_is_silent_until_it_is_unmuted(capsys):
    assert main(["diagnose", RUN_ID, "--mute", "non_finite"]) == 0
    assert main(["diagnose", "--fail-on", "info"]) == 0
    assert "No problems found" in capsys.readouterr().out
    assert main(["diagnose", RUN_ID, "--unmute", "non_finite"]) == 0
    assert main(["diagnose", "--fail-on", "info"]) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rules", "stragler"], "did you mean 'straggler'?"),
        (["--fail-on", "loud"], "it must be one of info, warning, critical"),
        (["--at", "yesterday"], "cannot parse 'yesterday' as a time"),
    ],
)
def test_what_cannot_be_used_is_named(capsys, words, said):
    assert main(["diagnose", *words]) == 2
    assert said in capsys.readouterr().err


def test_thresholds_come_from_the_servers_file(tmp_path, capsys):
    config = tmp_path / "server.yaml"
    config.write_text("diagnosis:\n  rules:\n    non_finite:\n      enabled: false\n")
    assert main(["diagnose", "--json", "--config", str(config), "--fail-on", "critical"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "non_finite" not in {one["rule"] for one in found}


def test_thresholds_come_from_the_running_server(data_dir, tmp_path, capsys):
    """The server record is the one of a running server, which this process replaces."""
    rules = {"non_finite": {"enabled": False}}
    record = ServerRecord(pid=os.getpid(), url="http://127.0.0.1:1", data_dir=str(tmp_path), diagnosis_rules=rules)
    (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(record))
    export = tmp_path / "run.rli"
    assert main(["export", "--format", "rli", "--run", RUN_ID, "-o", str(export)]) == 0
    capsys.readouterr()
    assert main(["diagnose", str(export), "--data-dir", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "non_finite" not in {one["rule"] for one in found}
