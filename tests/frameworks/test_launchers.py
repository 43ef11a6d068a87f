"""The real torchrun and accelerate: the ranks of a launch share a run, and two launches never do.

Also under `rl-insight run`, with a program that does not use RL-Insight itself.
"""

import importlib.util
import json
import os
import socket
import subprocess
import sys
import urllib.request

import pytest

from rl_insight.cli import main

if importlib.util.find_spec("accelerate") is None:
    pytest.skip("accelerate is not installed: `make integrations` runs this", allow_module_level=True)

SCRIPT = """
import json, os
import rl_insight as insight
from rl_insight.monitor import default_monitor

insight.init("p", "e", {"server": {"backend": "memory"}})
status = insight.get_status()
rank = default_monitor._pipeline.process.rank
print("RUN " + json.dumps([status["run_id"], os.environ.get("RANK"), rank]), flush=True)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def launch(*command):
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, env=environ, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    # Ranks may print onto one line: what follows each mark is read up to its own end.
    return [json.JSONDecoder().raw_decode(text)[0] for text in done.stdout.split("RUN ")[1:]]


TORCHRUN = ("torch.distributed.run", "--nproc-per-node", "2")
ACCELERATE = ("accelerate.commands.accelerate_cli", "launch", "--num_processes", "2")


@pytest.mark.parametrize(
    "command",
    [
        (*TORCHRUN, "--master-port", "PORT"),
        (*TORCHRUN, "--nnodes", "1", "--master-addr", "127.0.0.1", "--master-port", "PORT"),
        (*TORCHRUN, "--rdzv-backend", "c10d", "--rdzv-id", "100", "--rdzv-endpoint", "127.0.0.1:PORT"),
        (*TORCHRUN, "--standalone"),
        (*ACCELERATE, "--multi_gpu", "--main_process_port", "PORT"),
    ],
    ids=lambda command: " ".join(command[1:]),
)
def test_ranks_share_a_run_and_the_next_launch_does_not(command, script):
    port = free_port()
    launched = [launch(*(word.replace("PORT", port) for word in command), str(script)) for _ in range(2)]
    for ranks in launched:
        assert [rank for _, rank, _ in sorted(ranks, key=lambda one: one[1])] == ["0", "1"]
        assert all(str(recorded) == rank for _, rank, recorded in ranks)
        assert len({run for run, _, _ in ranks}) == 1
    assert launched[0][0][0] != launched[1][0][0]


@pytest.mark.parametrize("processes", ["1", "2"])  # without MPI, accelerate starts one process on CPUs in both cases
def test_two_launches_of_a_single_process_are_two_runs(processes, script):
    command = ("accelerate.commands.accelerate_cli", "launch", "--cpu", "--num_processes", processes, str(script))
    first, second = launch(*command), launch(*command)
    assert (len(first), len(second)) == (1, 1)
    assert first[0][0] != second[0][0]


MIRRORED = """
import os
from torch.utils.tensorboard import SummaryWriter

rank = int(os.environ["RANK"])
with SummaryWriter(f"logs/{rank}") as writer:
    for step in range(3):
        writer.add_scalar(f"loss/{rank}", step / 2, step)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    directory = tmp_path_factory.mktemp("server")
    ports = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")
    assert main(["server", "start", "--detach", "--data-dir", str(directory), *ports]) == 0
    yield json.loads((directory / "server.json").read_text())["url"]
    main(["server", "stop", "--data-dir", str(directory)])


@pytest.mark.parametrize("launcher", [(*TORCHRUN, "--standalone"), (*ACCELERATE, "--multi_gpu", "--main_process_port")])
def test_a_launcher_under_the_run_command(launcher, server, tmp_path, monkeypatch):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: `make integrations` runs this")
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", server)
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(MIRRORED)
    words = [*launcher, free_port()] if launcher[-1].endswith("port") else [*launcher]
    launch("rl_insight.cli", "run", "--no-hardware", "--run-id", launcher[0], "--", sys.executable, "-m", *words,
           str(program))  # fmt: skip

    def ask(path):
        with urllib.request.urlopen(f"{server}/api/v1/{path}run={launcher[0]}", timeout=10) as answer:
            return json.load(answer)

    ranks = [one["rank"] for one in ask("processes?") if one["role"] != "launcher" and one["rank"] is not None]
    assert {0, 1} <= set(ranks)
    for rank in (0, 1):
        [line] = ask(f"metrics/range?metric=loss_{rank}&axis=step&start_ns=0&end_ns={2**61}&width=1&")
        assert (line["x"], line["y"]) == ([0, 1, 2], [0.0, 0.5, 1.0])
