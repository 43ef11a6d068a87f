"""Which processes share a run: those started by one launcher, and no others."""

import os
import subprocess
import sys
import textwrap

import pytest

from rl_insight.config import InsightConfig
from rl_insight.launchers import launch_name
from rl_insight.startup import new_run_id

NODE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
NODES = {**NODE, "WORLD_SIZE": "4"}
ADDRESS = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}
STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "8", "SLURM_PROCID": "3"}

# Starts two ranks as a launcher does, here with a shell script between it and each of them.
LAUNCHER = """
import os, subprocess, sys
program = "from rl_insight.launchers import launch_name; import os; print(launch_name(os.environ), flush=True)"
for rank in "01":
    environ = {**os.environ, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": sys.argv[1]}
    command = [sys.executable, "-c", program]
    script = ["sh", "-c", 'true; "$@"; true', "sh"] if len(sys.argv) > 2 else []
    subprocess.run([*script, *command], env=environ, check=True)
"""


def launch(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LAUNCHER), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("arguments", [("none",), ("fixed-id",), ("none", "with a script for each rank")])
def test_ranks_share_a_run_and_the_next_launch_does_not(arguments):
    first, second = launch(*arguments), launch(*arguments)
    assert len(first) == 2
    assert len(set(first)) == 1
    assert len(set(second)) == 1
    assert first[0] != second[0]


def test_ranks_on_both_sides_of_midnight_share_a_run(monkeypatch):
    names = []
    for day in ("20260131", "20260201"):
        monkeypatch.setattr("time.strftime", lambda *_, day=day: day)
        names.append((launch_name(NODE), launch_name({**NODES, **ADDRESS})))
    assert names[0] == names[1]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        (STEP, "slurm-7-0"),
        ({**STEP, "SLURM_STEP_ID": "3"}, "slurm-7-3"),
        ({**STEP, "SLURM_RESTART_COUNT": "2"}, "slurm-7-0-restart-2"),
        ({**STEP, "SLURM_RESTART_COUNT": "0"}, "slurm-7-0"),
        ({**STEP, **NODES, **ADDRESS, "TORCHELASTIC_RUN_ID": "again"}, "slurm-7-0"),
        ({**NODES, **ADDRESS, "TORCHELASTIC_RUN_ID": "abc"}, "torchrun-abc"),
        ({**NODES, **ADDRESS, "TORCHELASTIC_RUN_ID": "none"}, launch_name({**NODES, **ADDRESS})),
    ],
)
def test_processes_of_one_launch_on_several_nodes_share_a_run(environ, expected):
    assert launch_name(environ) == expected
    assert launch_name({**environ, "RANK": "5", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}) == expected


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "7"},  # a program in the shell of an older salloc
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"},  # salloc's interactive step
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967291", "SLURM_PROCID": "0"},  # the script of sbatch
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1"},  # srun --pty bash
        {**ADDRESS, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
        ADDRESS,  # `accelerate launch --cpu`: one process, with the address that a second one would need
        {"WORLD_SIZE": "two"},
    ],
)
def test_each_program_that_no_launcher_connects_is_a_run(environ):
    config = InsightConfig(project="p", experiment_name="e")
    assert new_run_id(config, environ) != new_run_id(config, environ)


def test_tries_of_torchrun_in_one_slurm_task_are_separate():
    alone = {**STEP, "SLURM_STEP_NUM_TASKS": "4", **NODE}
    assert launch_name(alone).startswith("torchrun-")
    assert launch_name({**alone, "RANK": "1", "LOCAL_RANK": "1"}) == launch_name(alone)


def test_a_launcher_that_cannot_be_looked_at_still_names_the_launch(monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: 0)  # outside of this container
    assert launch_name(NODE) == launch_name(NODE)
