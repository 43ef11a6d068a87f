"""Starts a server as a child process, and waits until it is ready."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rl_insight.config.paths import find_local_server
from rl_insight.waiting import wait_for


def start_server(words: Sequence[str], output: Path, *, outlives_parent: bool = False) -> subprocess.Popen[bytes]:
    """Start `rl-insight server start` with options and settings; it prints to the file `output`.

    With `outlives_parent`, Ctrl+C and the end of the terminal do not reach it.

    Raises:
        OSError: the file cannot be written, or the process cannot be started.
    """
    output.parent.mkdir(parents=True, exist_ok=True)
    with output.open("wb") as stream:
        return subprocess.Popen(  # noqa: S603 -- our own program
            [sys.executable, "-m", "rl_insight.cli", "server", "start", *words],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=outlives_parent,
        )


def wait_until_ready(child: subprocess.Popen[bytes], directory: Path, timeout_s: float) -> bool:
    """Wait for the server that was started on a data directory; False if it exited or was not ready in time."""

    def is_ready() -> bool:
        state = find_local_server(directory)
        return state is not None and state.pid == child.pid

    wait_for(lambda: child.poll() is not None or is_ready(), timeout_s)
    return child.poll() is None and is_ready()
