"""Where the events go: a running server, one that is started for this run, or files."""

from __future__ import annotations

import contextlib
import os
import runpy
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from examples.async_grpo.children import die_with_parent, end_process
from rl_insight.config.paths import find_local_server

DEFAULT_PORT = 18080
READY_SECONDS = 30.0
STOP_SECONDS = 10.0


class DestinationError(Exception):
    """No destination is available."""


@dataclass(frozen=True, slots=True)
class Destination:
    """A server or a directory; the other one is None."""

    url: str | None = None
    token: str | None = None
    directory: Path | None = None

    @property
    def insight_config(self) -> dict[str, Any]:
        """The configuration for `insight.init`."""
        if self.url is None:
            return {"server": {"backend": "file"}, "file": {"directory": str(self.directory)}}
        return {"server": {"backend": "http", "url": self.url, "token": self.token}}


@contextlib.contextmanager
def open_destination(context: SpawnContext, url: str | None, directory: Path | None) -> Iterator[Destination]:
    """Find or start the destination of the run, for the duration of the block.

    Args:
        context: Creates the server's process, if one is needed.
        url: A server; without one, a server that runs on this machine is used, else one is started.
        directory: Record to files there and use no server.
    """
    # The environment overrides `init`, so these variables are removed.
    from_environment = os.environ.pop("RL_INSIGHT_SERVER_URL", None)
    if directory is not None:
        yield Destination(directory=directory)
        return
    if given := url or from_environment:
        yield Destination(url=given, token=os.environ.get("RL_INSIGHT_TOKEN"))
        return
    if (running := find_local_server()) is not None:
        yield Destination(url=running.url, token=running.token)
        return
    process, url = start_server(context)
    try:
        yield Destination(url=url)
    finally:
        process.terminate()
        process.join(STOP_SECONDS)
        end_process(process)


def start_server(context: SpawnContext) -> tuple[SpawnProcess, str]:
    """Start a server for this run, on the default port if it is free; returns its process and address."""
    for port in (free_port(DEFAULT_PORT), 0):
        process = context.Process(target=run_server, args=(port,), name="server")
        process.start()
        url = wait_until_ready(process)
        if url is not None:
            return process, url
        end_process(process)  # another program took the port first: try another one
    raise DestinationError("the server did not start: see its message above, or record to files with --no-server.")


def run_server(port: int) -> None:
    """Run `rl-insight server start` in this process, until it is stopped or the launcher has ended."""
    os.setsid()  # no Ctrl+C for the server: it stops last, after everything is delivered
    die_with_parent(_stop_this_process)
    sys.argv = ["rl-insight", "server", "start", "--port", str(port)]
    runpy.run_module("rl_insight.cli", run_name="__main__", alter_sys=True)


def _stop_this_process() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    timer = threading.Timer(STOP_SECONDS, os._exit, args=(1,))
    timer.daemon = True
    timer.start()


def free_port(preferred: int) -> int:
    """Return the preferred port, or any free one if it is taken."""
    for port in (preferred, 0):
        with contextlib.suppress(OSError), socket.socket() as candidate:
            candidate.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            candidate.bind(("127.0.0.1", port))
            return int(candidate.getsockname()[1])
    raise DestinationError("no free port on 127.0.0.1: close some programs, or record to files with --no-server.")


def wait_until_ready(process: SpawnProcess) -> str | None:
    """Return the address of the server in a process once it is ready; None if it ended instead."""
    deadline = time.monotonic() + READY_SECONDS
    while process.exitcode is None and time.monotonic() < deadline:
        state = find_local_server()
        if state is not None and state.pid == process.pid:
            return state.url
        time.sleep(0.05)
    return None
