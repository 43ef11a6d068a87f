"""The processes of the run: the launcher starts, monitors and stops them; none of them outlives it."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

import rl_insight as insight
from examples.async_grpo.settings import EXPERIMENT, PROJECT, Links, Settings

STOP_SECONDS = 20.0
Work = Callable[..., None]
"""Called in the new process as `work(settings, links, rank, *arguments)`."""


class ChildFailedError(Exception):
    """A process of the run ended too early."""


class Children:
    """All processes of one run."""

    def __init__(self, context: SpawnContext, settings: Settings, links: Links) -> None:
        self._context = context
        self._settings = settings
        self._links = links
        self._processes: list[SpawnProcess] = []

    def start(self, work: Work, role: str, rank: int, *arguments: Any) -> SpawnProcess:
        """Start a process that does one kind of work."""
        process = self._context.Process(
            target=run_child,
            name=f"{role}_{rank}",
            args=(work, self._settings, self._links, role, rank, arguments),
            daemon=True,
        )
        process.start()
        self._processes.append(process)
        return process

    def wait_for(self, awaited: SpawnProcess) -> None:
        """Wait until a process is done; raises if it fails, or if another one ends before it."""
        by_sentinel = {process.sentinel: process for process in self._processes}
        ended = [by_sentinel[sentinel] for sentinel in wait(list(by_sentinel)) if isinstance(sentinel, int)]
        for process in ended:
            process.join()
            if process is not awaited or process.exitcode != 0:
                raise ChildFailedError(f"{process.name} ended with exit code {process.exitcode}: see its error above.")

    def stop(self) -> None:
        """Ask all processes to stop, and kill those that do not."""
        services = [process for process in self._processes if process.name.startswith("tool")]
        self._links.stop.set()
        self._join([process for process in self._processes if process not in services])
        self._links.stop_services.set()
        self._join(services)

    def _join(self, processes: list[SpawnProcess]) -> None:
        deadline = time.monotonic() + STOP_SECONDS
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
            end_process(process)


def end_process(process: SpawnProcess, patience_s: float = 2.0) -> None:
    """End a process: with SIGTERM first, then with SIGKILL."""
    if process.is_alive():
        process.terminate()
        process.join(patience_s)
    if process.is_alive():
        process.kill()
        process.join()


def run_child(
    work: Work, settings: Settings, links: Links, role: str, rank: int, arguments: tuple[object, ...]
) -> None:
    """Do the work of a new process, recorded by RL-Insight. This is all the setup that a process needs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C reaches all processes; only the launcher handles it
    die_with_parent(lambda: os._exit(1))
    insight.init(PROJECT, EXPERIMENT, settings.insight_config, run_id=settings.run_id, role=role, rank=rank)
    # Log lines of this package become part of the run, linked to the current span.
    logger = logging.getLogger("examples")
    logger.setLevel(logging.INFO)
    logger.addHandler(insight.InsightHandler())
    try:
        work(settings, links, rank, *arguments)
    finally:
        insight.finish()


def die_with_parent(action: Callable[[], None]) -> None:
    """Call a function when the parent has ended for any reason: a thread waits for the parent's end of a pipe."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        action()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()
