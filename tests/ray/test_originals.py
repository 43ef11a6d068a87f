"""Unmodified programs from the package index: rl-insight 0.3.0 against our server, verl with our client."""

from __future__ import annotations

import http.server
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ORIGINALS = ROOT / ".originals"
PROGRAMS = ROOT / "tests" / "compat" / "programs"

TRAINER = """
import sys, time
import ray
address, url, port, original, project, experiment, reward = sys.argv[1:]
environment = {"env_vars": {"PYTHONPATH": original}}
ray.init(address=address, runtime_env=environment, logging_level="ERROR", log_to_driver=False)
import rl_insight as insight
assert insight.__version__ == "0.3.0", insight.__file__
insight.init(
    project=project,
    experiment_name=experiment,
    config={"server": {"url": url}, "prometheus": {"metrics_report_port": int(port)}},
)
insight.metric_count("steps", 3)
insight.metric_gauge("reward_mean", float(reward))
with insight.trace_state("rollout", state_lane_id="rank_0", step=1):
    time.sleep(0.01)
session = insight.agent_loop_session(experiment_name=experiment, sample=3, session=0, global_steps=7)
turn = {**session.identity, "monitor.trace_source": "gateway", "turn": 0, "completion_tokens": 512}
insight.trace_span(
    name="gateway_generation", start_time_ns=session.start_ns, end_time_ns=time.time_ns(), attributes=turn
)
session.finish(trajectories=[], status="success")
print("ready", flush=True)
sys.stdin.read()
"""


def original(name: str) -> Path:
    folder = ORIGINALS / name
    if not folder.exists():
        reason = ORIGINALS / f"{name}.reason"
        pytest.skip(f"{name}: {reason.read_text() if reason.exists() else 'not installed: run `make originals`'}")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def eventually(read, expected, timeout_s=60.0):
    deadline = time.monotonic() + timeout_s
    found = None
    while time.monotonic() < deadline:
        try:
            found = read()
        except OSError as error:  # the run has not arrived yet
            found = error
        if found == expected:
            return
        time.sleep(0.2)
    assert found == expected


def names_of(server, run):
    found = next(one for one in server.get("/api/v1/runs") if one["run_id"] == run)
    return found["project"], found["experiment_name"]


@pytest.fixture
def start_trainer(cluster, server):
    """Start a program that uses rl-insight 0.3.0; returns when it has recorded everything."""
    folder, started = original("rl-insight"), []

    def start(*names):
        trainer = subprocess.Popen(
            [sys.executable, "-c", TRAINER, cluster, server.url, str(free_port()), str(folder), *names],
            env={**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(trainer)
        assert trainer.stdout.readline() == "ready\n", trainer.stderr.read()

    yield start
    for trainer in started:
        trainer.communicate(timeout=60)


def check_trainer(server, run, project, experiment, reward):
    values = lambda metric: server.sql(run, f"SELECT DISTINCT value FROM samples WHERE name = '{metric}'")
    eventually(lambda: values("reward_mean"), [[reward]])
    eventually(lambda: values("steps"), [[3.0]])
    lane = f"experiment={experiment}/sample=3/session=0/traj=0"
    eventually(
        lambda: server.sql(run, "SELECT name, lane, step FROM spans ORDER BY name"),
        [["agent_session", lane, 7], ["gateway_generation", lane, 7], ["rollout", "rank_0", 1]],
    )
    eventually(lambda: names_of(server, run), (project, experiment))
    session = server.get(f"/api/v1/sessions?run={run}")["sessions"]
    assert [(one["status"], one["step"]) for one in session] == [("accepted", 7)]


def test_trainers_with_rl_insight_0_3_0_deliver_to_our_server_each_in_a_run(server, start_trainer):
    day = time.strftime("%Y%m%d", time.gmtime())
    trainers = {
        f"otlp-rl_insight_monitor-math.grpo-{day}": ("math", "grpo", 0.5),
        f"otlp-rl_insight_monitor-physics.ppo-{day}": ("physics", "ppo", 0.25),
    }
    for project, experiment, reward in trainers.values():
        start_trainer(project, experiment, str(reward))
    jobs = lambda: sorted((target["job_name"], target.get("run_id", "")) for target in server.targets())
    eventually(jobs, [("trainer_metrics", run) for run in trainers])
    for run, recorded in trainers.items():
        check_trainer(server, run, *recorded)
    assert sorted(one["run_id"] for one in server.get("/api/v1/runs")) == list(trainers)


@pytest.fixture
def engine():
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"vllm_num_requests_running 3\n")

        def log_message(self, *_args):
            pass

    page = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=page.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{page.server_address[1]}"
    page.shutdown()
    page.server_close()


def test_verls_logger_works_unmodified_with_ours(server, engine, tmp_path):
    done = subprocess.run(
        [sys.executable, PROGRAMS / "verl_training.py", server.url, engine],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(original("verl")), str(PROGRAMS)))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    assert answers["losses"] == {}
    run = answers["run_id"]
    rows = "SELECT name, value FROM samples WHERE name LIKE '%mean' ORDER BY time_ns"
    eventually(lambda: server.sql(run, rows), [["critic_score_mean", 0.5], ["critic_score_mean", 1.0]])
    lanes = server.sql(run, "SELECT DISTINCT name, lane FROM spans ORDER BY name")
    lane = "experiment=grpo/sample=3/session=0/traj=0"
    assert lanes == [
        ["actor_update", "rank_3"], ["agent_session", lane], ["gateway_generation", lane],
        ["vllm_generate", "replica_0"],
    ]  # fmt: skip
    (session,) = server.get(f"/api/v1/sessions?run={run}")["sessions"]
    assert (session["status"], session["step"], list(session["phases"])) == ("accepted", 2, ["gateway_generation"])
    jobs = lambda: sorted(target["job_name"] for target in server.targets())
    eventually(jobs, ["transfer_queue", "vllm"])
    assert names_of(server, run) == ("math", "grpo")
    eventually(lambda: {target["run_id"] for target in server.targets()}, {run})
    engines = "SELECT DISTINCT value FROM samples WHERE name = 'vllm_num_requests_running'"
    eventually(lambda: server.sql(run, engines), [[3.0]])


@pytest.fixture
def verl_run(cluster, server, engine, tmp_path):
    """Six steps with verl's logger and no plug-in; returns the run and the time of each step."""
    paths = os.pathsep.join((str(original("verl")), str(PROGRAMS)))
    training = subprocess.Popen(
        [sys.executable, PROGRAMS / "verl_steps.py", cluster, server.url, engine, paths],
        env={**os.environ, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": paths},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        line = training.stdout.readline()
        assert line, training.stderr.read()
        answers = json.loads(line)
        yield answers["run_id"], [(step, began, ended) for step, began, ended in answers["truth"]]
    finally:
        training.communicate(timeout=60)


def test_verl_without_a_plug_in_has_steps_phases_and_reward_on_the_page(server, verl_run):
    run, truth = verl_run
    eventually(lambda: [one["step"] for one in server.get(f"/api/v1/steps?run={run}")], [1, 2, 3, 4, 5, 6])
    spans = "SELECT count(*) FROM spans WHERE name IN ('actor_update', 'vllm_generate')"
    eventually(lambda: server.sql(run, spans), [[18]])

    steps = server.get(f"/api/v1/steps?run={run}")
    for one, (_, began, ended) in zip(steps, truth, strict=True):
        assert one["start_ns"] / 1e9 == pytest.approx(began, abs=0.1)
        assert one["end_ns"] / 1e9 == pytest.approx(ended, abs=0.1)
        assert one["spans"] == 3, "one generation and two updates"

    summary = server.get(f"/api/v1/summary?run={run}")
    assert (summary["first_step"], summary["last_step"]) == (1, 6)
    assert (summary["project"], summary["experiment_name"]) == ("math", "grpo")

    found = server.get(f"/api/v1/steps/breakdown?run={run}&first=1&last=6")
    assert (found["role"], found["roles"]) == ("worker", ["worker", "rollout"])
    for one, (step, _, _) in zip(found["steps"], truth, strict=True):
        phases = {phase["name"]: phase["wall_ns"] / 1e9 for phase in one["phases"] if phase["wall_ns"]}
        assert (one["step"], one["lanes"]) == (step, 2)
        assert phases == {"actor_update": pytest.approx(0.2 + 0.1 * step, abs=0.15)}
        assert phases["actor_update"] + one["idle_ns"] / 1e9 == pytest.approx((one["end_ns"] - one["start_ns"]) / 1e9)
    engines = server.get(f"/api/v1/steps/breakdown?run={run}&first=1&last=6&role=rollout")["steps"]
    waits = [phase["wall_ns"] / 1e9 for one in engines for phase in one["phases"] if phase["name"] == "vllm_generate"]
    assert waits == [pytest.approx(0.4, abs=0.15)] * 6

    by_step = "start_ns=0&end_ns=4000000000000000000&width=1&axis=step"
    for metric, values in (
        ("critic_rewards_mean", [step / 8 for step in range(1, 7)]),
        ("actor_entropy", [1 / step for step in range(1, 7)]),
    ):
        (line,) = server.get(f"/api/v1/metrics/range?run={run}&metric={metric}&{by_step}")
        assert (line["x"], line["y"]) == ([1, 2, 3, 4, 5, 6], values)

    places = sorted(
        (one["role"], one["rank"]) for one in server.get(f"/api/v1/processes?run={run}") if one["rank"] is not None
    )
    assert places == [("rollout", 0), ("worker", 0), ("worker", 1)]
    slowest = server.get(f"/api/v1/hotspots?run={run}&step=6")
    assert {one["name"]: one["count"] for one in slowest} == {"actor_update": 2, "vllm_generate": 1}

    eventually(lambda: [target["run_id"] for target in server.targets() if target["job_name"] == "vllm"], [run])
    eventually(lambda: [one["run_id"] for one in server.get("/api/v1/runs")], [run])
