"""One service: starting it, checking that it is ready, ending it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

import psutil

from rl_insight.http_client import HttpError, request
from rl_insight.waiting import wait_for

logger = logging.getLogger(__name__)

_LOG_LIMIT_BYTES = 20 * 1024 * 1024
_PROBE_TIMEOUT_S = 2.0
_KILL_TIMEOUT_S = 10.0

ROOT_VARIABLE = "RL_INSIGHT_STACK_ROOT"
"""Set to the stack's directory in the environment of every service, to find all of them."""


@dataclass(frozen=True, slots=True)
class ServiceSpec:
    """How to run a service."""

    name: str
    title: str
    command: list[str]
    url: str
    """Its page or API."""
    ready_path: str
    """Responds with 200 once the service can be used."""
    log: Path
    directory: Path
    """Its working directory."""
    version: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)


def launch(spec: ServiceSpec) -> subprocess.Popen[bytes]:
    """Start a service in a separate process group; its output goes to its log."""
    spec.log.parent.mkdir(parents=True, exist_ok=True)
    if spec.log.is_file() and spec.log.stat().st_size > _LOG_LIMIT_BYTES:
        spec.log.replace(spec.log.with_name(spec.log.name + ".1"))
    with spec.log.open("ab") as log:
        return subprocess.Popen(  # noqa: S603 -- a program that the user chose
            spec.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=spec.directory,
            env={**os.environ, **spec.environment, ROOT_VARIABLE: str(spec.directory)},
            # Ctrl+C is for the owner, which then ends the services in order.
            start_new_session=True,
        )


def is_ready(url: str, path: str) -> bool:
    """Return whether a service can be used; never asks through a proxy."""
    try:
        return request("GET", url.rstrip("/") + path, timeout_s=_PROBE_TIMEOUT_S).status == HTTPStatus.OK
    except HttpError:
        return False


def end_group(pid: int, is_gone: Callable[[], bool], timeout_s: float) -> None:
    """End a process and its group: with SIGTERM, and after `timeout_s` with SIGKILL.

    Args:
        pid: the process, which leads its group.
        is_gone: returns whether it has ended; a parent reaps its child here. If it has ended already, nothing
            happens: its pid may belong to another process by now.
        timeout_s: how long it may take.
    """
    if is_gone():
        return
    signal_group(pid, signal.SIGTERM)
    if not wait_for(is_gone, timeout_s):
        logger.warning("process %d has not ended after %g s: killing it.", pid, timeout_s)
        signal_group(pid, signal.SIGKILL)
        if not wait_for(is_gone, _KILL_TIMEOUT_S):
            logger.warning("process %d was killed and has not ended: it may be waiting for its disk.", pid)
            return
    # Kill the children that the service left behind.
    signal_group(pid, signal.SIGKILL)


def end_strays(root: Path, timeout_s: float) -> int:
    """End every process that was started for a stack, even if it is not in the state; returns how many."""
    groups: dict[int, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(ROOT_VARIABLE) == str(root) and process.pid != os.getpid():
                groups.setdefault(os.getpgid(process.pid), []).append(process)
    for group, processes in groups.items():
        end_group(group, lambda processes=processes: not any(map(_is_running, processes)), timeout_s)  # type: ignore[misc]
    return len(groups)


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal to a service and its children; not an error if none of them is left."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def last_lines(path: Path, count: int = 8) -> str:
    """Return the last lines of a log."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(path.stat().st_size - 8192, 0))
            lines = stream.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line[:500] for line in lines[-count:])


def describe_exit(code: int) -> str:
    """Return how a process ended.

    >>> describe_exit(-9), describe_exit(2)
    ('signal SIGKILL', 'exit code 2')
    """
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
