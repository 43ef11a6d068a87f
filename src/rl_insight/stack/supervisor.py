"""Supervises the local processes: starts them in order, restarts those that crash, ends them in reverse order."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rl_insight.backoff import Backoff
from rl_insight.stack.errors import StackError
from rl_insight.stack.service import ServiceSpec, describe_exit, end_group, is_ready, last_lines, launch, signal_group
from rl_insight.stack.settings import StackSettings
from rl_insight.stack.state import ServiceState, StackState, created_at, read_state, remove_state, write_state
from rl_insight.waiting import wait_for

logger = logging.getLogger(__name__)

_POLL_S = 0.1
_PROBE_EVERY_S = 5.0
_STEADY_S = 60.0
"""After this long the backoff starts over: the next crash counts as the first."""


class Supervisor:
    """Runs services as child processes until it is stopped, or until another process deletes the state file.

    Services start in the order of `specs`. The thread that watches them also calls the `tasks` repeatedly.
    """

    def __init__(
        self,
        specs: Sequence[ServiceSpec],
        root: Path,
        settings: StackSettings,
        tasks: Sequence[Callable[[], None]] = (),
    ) -> None:
        self._root = root
        self._settings = settings
        self._children = [_Child(spec) for spec in specs]
        self._tasks = list(tasks)
        self._stopping = threading.Event()
        self._stop_lock = threading.Lock()
        self._owner_created = created_at(os.getpid())
        self._watcher = threading.Thread(target=self._watch, name="rl-insight-stack", daemon=True)

    def start(self) -> None:
        """Start all services, each after the one before it is ready.

        Raises:
            StackError: one does not become ready; those that were started are ended.
        """
        try:
            for child in self._children:
                child.launch()
                self._save()
                self._wait_ready(child)
                self._save()
        except BaseException:
            self.stop()
            raise
        self._watcher.start()

    def stop(self) -> None:
        """End all services in reverse order; idempotent."""
        self._stopping.set()
        try:
            if self._watcher.is_alive() and threading.current_thread() is not self._watcher:
                self._watcher.join()
            with self._stop_lock:
                for child in reversed(self._children):
                    child.end(self._settings.stop_timeout_s)
        except BaseException:
            # A second Ctrl+C ends the wait, but must leave nothing running. A third may follow at once, so all are
            # killed before any is waited for.
            for child in self._children:
                child.kill()
            for child in self._children:
                child.end(0.0)
            raise
        finally:
            if self._owns_state():
                remove_state(self._root)

    @property
    def is_running(self) -> bool:
        """False once the services have been ended, by this process or at the request of another."""
        return not self._stopping.is_set()

    def _wait_ready(self, child: _Child) -> None:
        spec = child.spec
        timeout_s = self._settings.ready_timeout_s
        if not wait_for(lambda: self._is_ready(child), timeout_s, _POLL_S):
            raise StackError(
                f"{spec.title} did not become ready: {spec.url}{spec.ready_path} did not respond with 200 within "
                f"{timeout_s:.0f} s. See {spec.log}, or raise stack.ready_timeout_s."
            )
        child.state = "running"

    def _is_ready(self, child: _Child) -> bool:
        spec = child.spec
        if is_ready(spec.url, spec.ready_path):
            return True
        if self._stopping.is_set() or not self._owns_state():
            raise StackError(f"{spec.title} was stopped before it was ready.")
        code = child.poll()
        if code is not None:
            raise StackError(
                f"{spec.title} did not start: it ended with {describe_exit(code)}. Its log {spec.log} ends with:\n"
                f"{last_lines(spec.log)}"
            )
        return False

    def _watch(self) -> None:
        while not self._stopping.wait(_POLL_S):
            if not self._owns_state():
                logger.info("another process stopped the stack")
                self.stop()
                return
            for child in self._children:
                # Not if another process has just deleted the state, which requests a stop.
                if child.watch(self._settings) and self._owns_state():
                    self._save()
            for task in self._tasks:
                try:
                    task()
                except Exception:
                    logger.exception("a task of the stack failed; retrying")

    def _owns_state(self) -> bool:
        state = read_state(self._root)
        return state is not None and state.owner_pid == os.getpid()

    def _save(self) -> None:
        services = [child.describe() for child in self._children]
        state = StackState(mode="local", owner_pid=os.getpid(), owner_created=self._owner_created, services=services)
        write_state(self._root, state)


class _Child:
    """A service and the process it runs in."""

    def __init__(self, spec: ServiceSpec) -> None:
        self.spec = spec
        self.state = "stopped"
        self._process: subprocess.Popen[bytes] | None = None
        self._created = 0.0
        self._started_at = 0.0
        self._restart_at: float | None = None
        self._restarts = 0
        self._backoff: Backoff | None = None
        self._last_exit = ""
        self._probe_at = 0.0
        self._unready_since: float | None = None

    def launch(self) -> None:
        self._started_at = time.monotonic()
        self._restart_at = None
        self._unready_since = None
        self._probe_at = self._started_at + _PROBE_EVERY_S
        try:
            self._process = launch(self.spec)
        except OSError as error:
            raise StackError(f"{self.spec.title} cannot be started: {error}.") from error
        self._created = created_at(self._process.pid)
        self.state = "starting"

    def poll(self) -> int | None:
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            signal_group(self._process.pid, signal.SIGKILL)

    def end(self, timeout_s: float) -> None:
        process = self._process
        if process is not None:
            end_group(process.pid, lambda: process.poll() is not None, timeout_s)
            self._process = None
        self._restart_at = None
        self.state = "stopped"

    def watch(self, settings: StackSettings) -> bool:
        """Check the process once; True if something changed."""
        if self._restart_at is not None:
            return self._restart_when_due(settings)
        code = self.poll()
        if code is not None:
            self._restart_later(describe_exit(code), settings)
            return True
        if self._hangs(settings):
            process = self._process
            assert process is not None  # noqa: S101 -- it has not ended
            end_group(process.pid, lambda: process.poll() is not None, settings.stop_timeout_s)
            self._restart_later(f"no response for {settings.ready_timeout_s:.0f} s", settings)
            return True
        if self.state == "starting" and is_ready(self.spec.url, self.spec.ready_path):
            self.state = "running"
            return True
        return False

    def _hangs(self, settings: StackSettings) -> bool:
        """Return whether the process is alive but has not been ready for longer than a start may take."""
        now = time.monotonic()
        if now < self._probe_at:
            return False
        self._probe_at = now + min(_PROBE_EVERY_S, settings.ready_timeout_s / 4)
        if is_ready(self.spec.url, self.spec.ready_path):
            self._unready_since = None
            return False
        if self._unready_since is None:
            self._unready_since = self._started_at if self.state == "starting" else now
        return now - self._unready_since >= settings.ready_timeout_s

    def _restart_later(self, reason: str, settings: StackSettings) -> None:
        if self._backoff is None or time.monotonic() - self._started_at > _STEADY_S:
            self._backoff = Backoff(settings.restart_delay_s, settings.restart_delay_max_s)
        self._last_exit = reason
        pause_s = self._backoff.next_s()
        self._restart_at = time.monotonic() + pause_s
        self._process = None
        self.state = "restarting"
        logger.warning(
            "%s ended: %s. Restarting in %.1f s. See %s.",
            self.spec.title,
            self._last_exit,
            pause_s,
            self.spec.log,
        )

    def _restart_when_due(self, settings: StackSettings) -> bool:
        if self._restart_at is None or time.monotonic() < self._restart_at:
            return False
        self._restarts += 1
        try:
            self.launch()
        except StackError as error:
            logger.warning("%s Retrying.", error)
            self._restart_at = time.monotonic() + settings.restart_delay_max_s
            return False
        return True

    def describe(self) -> ServiceState:
        spec = self.spec
        return ServiceState(
            name=spec.name,
            title=spec.title,
            state=self.state,
            url=spec.url,
            version=spec.version,
            log=str(spec.log),
            pid=None if self._process is None else self._process.pid,
            created=self._created,
            restarts=self._restarts,
            last_exit=self._last_exit,
        )
