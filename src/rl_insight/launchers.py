"""How this process was launched: its rank, and a name for the launch that all of its ranks share."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rl_insight.config.model import MAX_RANK
from rl_insight.recorder.ids import host_name
from rl_insight.urls import is_loopback

_RANKS = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")

_FIRST_SPECIAL_STEP = 0xFFFF_FFFA
"""Slurm numbers the steps of `srun` from 0. The shell of `salloc` and the script of `sbatch` are steps from here on."""


def launcher_rank(environ: Mapping[str, str]) -> int | None:
    """Return the rank that torchrun, Slurm or MPI gave this process.

    >>> launcher_rank({"RANK": "3"}), launcher_rank({})
    (3, None)
    """
    for name in _RANKS:
        rank = _number(environ, name)
        if rank is not None and rank <= MAX_RANK:
            return rank
    return None


def launch_name(environ: Mapping[str, str]) -> str | None:
    """Return a name shared by all processes of one launch and by no other launch; None for a standalone process.

    On one node the launcher process identifies the launch, whatever port or id the user gave it. Across nodes it is the
    Slurm step, then the rendezvous id; the rendezvous address does not distinguish launches and is the last resort.
    """
    size = _number(environ, "WORLD_SIZE")
    if size == 1:
        return None
    if size is not None and _is_one_node(environ, size):
        return f"torchrun-{_digest(*_launcher_process(environ))}"
    if (step := _slurm_step(environ)) is not None:
        return step
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "none")
    if rendezvous != "none":
        return f"torchrun-{rendezvous}"
    if {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= environ.keys():
        return f"torchrun-{_digest(environ['MASTER_ADDR'], environ['MASTER_PORT'])}"
    return None


def may_be_repeated(environ: Mapping[str, str]) -> bool:
    """Return whether a later launch can have the same name: torchrun on several nodes without Slurm.

    Nothing on the nodes distinguishes such launches; a server that sees the ranks of both can.

    >>> may_be_repeated({"RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "try"})
    True
    """
    size = _number(environ, "WORLD_SIZE")
    if size is None or size == 1 or _is_one_node(environ, size) or _slurm_step(environ) is not None:
        return False
    return launch_name(environ) is not None


def restarts(environ: Mapping[str, str]) -> int:
    """Return how often torchrun has restarted the workers of this launch."""
    return _number(environ, "TORCHELASTIC_RESTART_COUNT") or 0


def _is_one_node(environ: Mapping[str, str], size: int) -> bool:
    local_size = _number(environ, "LOCAL_WORLD_SIZE")
    if local_size is not None:
        return local_size == size
    # Ranks started by a script, as with torch.multiprocessing.spawn.
    return "SLURM_STEP_ID" not in environ and is_loopback(environ.get("MASTER_ADDR", ""))


def _slurm_step(environ: Mapping[str, str]) -> str | None:
    """Return the name of the `srun` that started this process together with others.

    A job id alone does not identify a launch: all programs started in one `salloc` or `sbatch` share it.
    """
    job, step = environ.get("SLURM_JOB_ID"), _number(environ, "SLURM_STEP_ID")
    if job is None or step is None or step >= _FIRST_SPECIAL_STEP:
        return None
    if _number(environ, "SLURM_STEP_NUM_TASKS") == 1:  # perhaps a shell: `srun --pty bash`
        return None
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    return f"slurm-{job}-{step}" + (f"-restart-{restarts}" if restarts != "0" else "")


def _launcher_process(environ: Mapping[str, str]) -> tuple[str, str, str]:
    """Return host, pid and start time of the process that started all ranks of this node.

    That is the nearest ancestor without a rank: there may be a shell script per rank in between.
    """
    import psutil

    mark = "LOCAL_RANK" if "LOCAL_RANK" in environ else "RANK"
    pid, started = os.getppid(), ""
    try:
        parent = psutil.Process(pid)
        for ancestor in [parent, *parent.parents()]:
            pid, started = ancestor.pid, _started(ancestor)
            if mark not in ancestor.environ():
                break
    except psutil.Error:  # owned by another user or outside of this container, so not one of the ranks
        pass
    return host_name(), str(pid), started


def _started(process: Any) -> str:
    """Return when a process started, independent of the wall clock if possible."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii")
        fields = Path(f"/proc/{process.pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return str(process.create_time())
    return boot + fields[19]


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= len(str(MAX_RANK)) else None


def _digest(*parts: str) -> str:
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=4).hexdigest()
