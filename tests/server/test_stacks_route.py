"""The response to a batch requests stacks from a process, and the command shows them in groups."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time

import pytest

from benchmarks.diagnosis_script import BEGIN_S, SECOND, Script
from rl_insight.cli import main
from rl_insight.diagnosis.run import LiveDiagnosis, replay
from rl_insight.schema.stacks import STACKS_EVENT, Stack, Stacks
from rl_insight.server.stacks import AGAIN_S, StackRequests
from rl_insight.store import queries
from rl_insight.store.run_store import RunStore

STUCK = """
import sys
import rl_insight as insight
insight.init("math", "grpo", run_id="r1", role="trainer", rank=0)
def wait_for_a_line():
    with insight.trace_state("update"):
        print("ready", flush=True)
        sys.stdin.readline()
wait_for_a_line()
insight.finish()
"""
STUCK_IN_C = """
import re
import rl_insight as insight
insight.init("math", "grpo", {"recorder": {"heartbeat_s": 0.5}}, run_id="r1", role="rollout", rank=1)
def normalize_answer():
    with insight.trace_state("reward"):
        insight.flush(20)
        print("ready", flush=True)
        re.match("(a+)+$", "a" * 60 + "b")  # for years, and it never lets another thread run
normalize_answer()
"""
HEADERS = {"content-type": "application/vnd.rl-insight.frames"}


def test_a_training_process_is_asked_and_shown_where_it_is(start_server, tmp_path, capsys):
    server = start_server()
    environment = os.environ | {"RL_INSIGHT_DATA_DIR": str(server.data_dir), "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-W", "ignore", "-c", STUCK]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as training:
        assert training.stdout.readline() == "ready\n"
        try:
            said, deadline = "", time.monotonic() + 40
            while "trainer" not in said and time.monotonic() < deadline:  # its first batch is on its way
                main(["stacks", "r1", "--data-dir", str(server.data_dir), "--wait", "20"])
                said = capsys.readouterr().out
        finally:
            training.communicate("go\n", timeout=20)
    assert "1 process: trainer 0" in said
    assert "wait_for_a_line" in said


def test_a_process_that_is_stuck_in_c_code_is_shown_by_another_one_of_its_host(
    start_server, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    server = start_server()
    environment = os.environ | {"RL_INSIGHT_DATA_DIR": str(server.data_dir), "TMPDIR": str(tmp_path)}
    pipes = {"env": environment, "stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-W", "ignore", "-c"]
    with (
        subprocess.Popen([*command, STUCK], **pipes) as neighbor,
        subprocess.Popen([*command, STUCK_IN_C], **pipes) as stuck,
    ):
        try:
            assert [one.stdout.readline() for one in (neighbor, stuck)] == ["ready\n", "ready\n"]
            said, deadline = "", time.monotonic() + 60
            while "normalize_answer" not in said and time.monotonic() < deadline:  # until it counts as silent
                main(["stacks", "r1", "--data-dir", str(server.data_dir), "--wait", "5"])
                said = capsys.readouterr().out
            assert stuck.poll() is None
            main(["stacks", "--pid", str(stuck.pid)])
            by_number = capsys.readouterr().out
        finally:
            stuck.kill()
            neighbor.communicate("go\n", timeout=20)
    assert "1 process: rollout 1" in said
    assert re.search(r"match \(.*re/__init__.py:\d+\)\n    normalize_answer \(<string>:9\)", said)
    assert "normalize_answer" in by_number


def test_each_process_is_asked_once_a_minute_with_its_own_batch(make_services, client_of, make_batch, frames):
    services = make_services()
    client = client_of(services)
    assert client.post("/api/v1/ingest", content=frames(make_batch()), headers=HEADERS).json() == {
        "accepted": 1, "duplicates": 0,
    }  # fmt: skip
    assert client.post("/api/v1/stacks?run=r1").json() == {"asked": 1}
    assert client.post("/api/v1/stacks?run=r1").json() == {"asked": 0}
    other = client.post("/api/v1/ingest", content=frames(make_batch(process_id="p2")), headers=HEADERS)
    assert "stacks" not in other.json()
    own = client.post("/api/v1/ingest", content=frames(make_batch(sequence=2)), headers=HEADERS)
    assert own.json()["stacks"] == ["p1"]
    again = client.post("/api/v1/ingest", content=frames(make_batch(sequence=3)), headers=HEADERS)
    assert "stacks" not in again.json()


def test_one_setting_turns_it_off(make_services, client_of, make_batch, frames):
    client = client_of(make_services("diagnosis.stacks=false"))
    client.post("/api/v1/ingest", content=frames(make_batch()), headers=HEADERS)
    assert client.post("/api/v1/stacks?run=r1").json() == {"asked": 0}
    answer = client.post("/api/v1/ingest", content=frames(make_batch(sequence=2)), headers=HEADERS)
    assert "stacks" not in answer.json()


def test_a_request_that_nothing_takes_is_forgotten():
    now = [0.0]
    requests = StackRequests(clock=lambda: now[0])
    assert requests.ask(["gone"]) == 1
    now[0] += 2 * AGAIN_S
    assert requests.ask(["other"]) == 1
    assert requests.take(["gone", "other"]) == ["other"]


def _stacks(*frames: str, tasks: tuple[Stack, ...] = ()) -> str:
    return json.dumps(_plain(Stacks(stacks=[Stack(name="MainThread", frames=list(frames)), *tasks])))


def _plain(stacks: Stacks) -> dict[str, object]:
    return {"stacks": [{"name": one.name, "kind": one.kind, "frames": one.frames, "session_id": one.session_id}
                       for one in stacks.stacks]}  # fmt: skip


@pytest.fixture
def stuck_run(tmp_path):
    """Eight ranks of which one never enters the update; all sent their stacks 40 seconds later."""
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        script = Script(1)
        actors = [script.actor("trainer", rank, "node-0") for rank in range(8)]
        for step in range(20):
            for actor in actors:
                script.span(actor, "update", 2.0 * step, 1.9, step=step)
        for rank, actor in enumerate(actors):
            script.span(actor, "load" if rank == 5 else "update", 40.0, None, step=20)
            frames = ("read (data.py:9)", "load (data.py:3)") if rank == 5 else (f"all_reduce (nccl.py:{rank})",)
            moment = int((BEGIN_S + 80.0) * SECOND)
            actor.builder.add_event(time_ns=moment, name=STACKS_EVENT, attributes=_stacks(*frames))
        script.write(store, 120.0, goodbye=False)
        yield store


def test_stacks_of_stuck_work_are_evidence_live_and_offline(stuck_run):
    live, now_ns = LiveDiagnosis(), int((BEGIN_S + 130.0) * SECOND)
    with stuck_run.reader() as cursor:
        while not live.is_current(now_ns):
            live.evaluate(cursor, now_ns)
        offline = replay(cursor, at_ns=int((BEGIN_S + 128.0) * SECOND)).findings
        groups = queries.stack_groups(cursor)
    assert [len(group.processes) for group in groups] == [1, 7]
    assert groups[0].processes[0].rank == 5
    assert set(live.suspects()) == {f"trainer-{rank}" for rank in range(8)}
    assert live.suspects() == []  # asked once
    for findings in (live.engine.run_findings.values(), offline):
        (hang,) = [one for one in findings if one.rule == "collective_hang"]
        (stack,) = [one for one in hang.evidence if one["name"] == "stack of trainer 5"]
        assert stack["value"] == "read (data.py:9) ← load (data.py:3)"
        assert stack["compared_with"].startswith("7 of 8 processes are in all_reduce")
