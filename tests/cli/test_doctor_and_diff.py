"""`rl-insight doctor`, `diff`, `open` and `demo`, end to end."""

import json
import os
import subprocess
import sys

from rl_insight.cli import main
from tests.reader.recorded import STEPS


def checks(capsys, *words):
    capsys.readouterr()
    code = main(["doctor", "--json", *words])
    return code, {check["name"]: check for check in json.loads(capsys.readouterr().out)}


def test_a_healthy_server_passes_and_nothing_is_left_behind(server_url, capsys):
    code, found = checks(capsys, "--server", server_url)
    assert code == 0, found
    assert {"python", "server", "token", "version", "writer", "spool", "GPUs", "Ray"} <= found.keys()
    assert "a span was stored and found" in found["write and read back"]["said"]
    assert found["clock"]["state"] == "ok"
    assert main(["runs", "list", "--json", "--server", server_url]) == 0
    assert not [row for row in json.loads(capsys.readouterr().out) if "doctor" in row["run_id"]]


def test_no_server_and_a_server_that_is_down_are_problems(capsys, tmp_path):
    code, found = checks(capsys, "--data-dir", str(tmp_path))
    assert (code, found["server"]["state"], "ports" in found) == (1, "problem", True)
    code, found = checks(capsys, "--server", "http://127.0.0.1:9")
    assert code == 1
    assert "does not answer" in found["server or token"]["said"]


def test_two_runs_are_compared_over_the_steps_that_both_have(place, capsys):
    where = ["--data-dir", str(place)]
    assert main(["diff", "grpo-7b-a", "ppo", "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["first"], found["second"], found["first_step"]) == ("grpo-7b-a", "ppo-1", 0)
    assert found["times"][0]["name"] == "step"
    assert {row["name"] for row in found["times"]} >= {"step", "rollout", "update", "idle"}
    reward = next(row for row in found["metrics"] if row["name"] == "reward")
    assert reward["first"] == reward["second"]
    assert main(["diff", "grpo-7b-a", "ppo", *where]) == 0
    out = capsys.readouterr().out
    assert out.startswith(found["sentence"])
    assert f"Steps 0 to {found['last_step']}, which both have." in out
    assert found["last_step"] >= STEPS - 2
    assert "+0.0%" in out


def test_open_prints_the_address_of_the_page(served, server_url, capsys):
    assert main(["open", "ppo", "--print", "--data-dir", str(served)]) == 0
    assert capsys.readouterr().out == f"{server_url}/?run=ppo-1\n"
    assert main(["open", "--data-dir", str(served / "nothing")]) == 1
    assert "no server runs on" in capsys.readouterr().err


def test_the_demo_runs_from_anywhere(tmp_path, served):
    environment = {**os.environ, "RL_INSIGHT_DATA_DIR": str(tmp_path / "none")}
    words = ["demo", "--steps", "2", "--workers", "1", "--no-server", "--speed", "20"]
    done = subprocess.run(
        [sys.executable, "-m", "rl_insight.cli", *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Run async_grpo-" in done.stdout
