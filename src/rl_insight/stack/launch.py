"""Starts the stack next to a server: as local processes, or as containers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from rl_insight.collector.base import Sink
from rl_insight.collector.sinks.otlp import OtlpTraceSink
from rl_insight.config.fields import check_limits
from rl_insight.schema.names import DEFAULT_NAMESPACE
from rl_insight.stack.compose import (
    CONTAINER_ROOT,
    ComposeProject,
    engine_answers,
    own_directories,
    project_name,
    render_compose,
)
from rl_insight.stack.control import stop_stack
from rl_insight.stack.discovery import TARGETS_FILE, TargetMirror
from rl_insight.stack.errors import MissingProgramError, StackError
from rl_insight.stack.ports import with_free_ports
from rl_insight.stack.render import Layout, MetricsEndpointOfServer, extra_dashboards
from rl_insight.stack.service import ServiceSpec
from rl_insight.stack.settings import StackSettings
from rl_insight.stack.specs import find_programs, image_programs, render_services
from rl_insight.stack.state import ServiceState, StackState, created_at, take_lock, write_state
from rl_insight.stack.supervisor import Supervisor
from rl_insight.urls import reachable_address

logger = logging.getLogger(__name__)

_TARGETS_EVERY_S = 1.0


class RunningStack:
    """A stack that was started; a `with` block stops it at the end."""

    def __init__(self, mode: str, settings: StackSettings, urls: dict[str, str], stop: Callable[[], None]) -> None:
        self.mode = mode
        """`compose` or `local`."""
        self.settings = settings
        """With the chosen ports."""
        self.urls = urls
        """The pages of the services, by name."""
        self._stop = stop

    @property
    def otlp_endpoint(self) -> str | None:
        """Where Tempo receives spans over HTTP; None without Tempo."""
        tempo = self.settings.tempo
        if not tempo.enabled:
            return None
        return f"http://{reachable_address(self.settings.host, tempo.otlp_http_port)}/v1/traces"

    def sinks(self) -> list[Sink]:
        """Return the sinks that send to the stack; the collector owns them."""
        endpoint = self.otlp_endpoint
        return [OtlpTraceSink(endpoint, name="tempo")] if endpoint else []

    def stop(self) -> None:
        """Stop all services, in reverse order; idempotent."""
        self._stop()

    def __enter__(self) -> RunningStack:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()


def start_stack(
    settings: StackSettings,
    directory: Path,
    server: MetricsEndpointOfServer,
    *,
    namespace: str = DEFAULT_NAMESPACE,
) -> RunningStack:
    """Start Prometheus, Tempo and Grafana for a server, and wait until each is ready.

    A thread of the calling process supervises them until `stop`, or until `stop_stack` in another process.

    Args:
        settings: which services, and their options.
        directory: the server's data directory; the stack uses its folder `stack`.
        server: where Prometheus scrapes the server's metrics.
        namespace: the namespace of the metrics in dashboards and rules.

    Raises:
        MissingProgramError: programs are missing; the message lists them all.
        StackError: a port is taken, or a service does not become ready. Nothing is left running.
        ConfigError: a setting is out of range.
    """
    check_limits(settings, "stack.")
    layout = Layout(directory.expanduser().resolve())
    lock = take_lock(layout.root)
    try:
        _end_leftovers(layout, settings)
        mode = _mode(settings)
        if mode == "local":
            found = find_programs(settings, layout.directory)
        else:
            layout, found = replace(layout, mount=CONTAINER_ROOT), image_programs(settings)
        chosen = with_free_ports(settings)
        specs = render_services(chosen, layout, server, namespace, found)
        mirror = TargetMirror(layout.directory / TARGETS_FILE, layout.discovery_file)
        mirror.refresh()
        start = _start_processes if mode == "local" else _start_containers
        stop = start(chosen, layout, specs, mirror)
    except BaseException:
        lock.close()
        raise

    def stop_and_unlock() -> None:
        stop()
        lock.close()

    return RunningStack(mode, chosen, {spec.name: spec.url for spec in specs}, stop_and_unlock)


def _mode(settings: StackSettings) -> str:
    if settings.mode == "local" or engine_answers():
        return "compose" if settings.mode == "auto" else settings.mode
    if settings.mode == "auto":
        return "local"
    raise MissingProgramError(
        "the stack cannot be started as containers: no container engine answers `docker compose`. "
        "Start the engine, or use stack.mode=local."
    )


def _end_leftovers(layout: Layout, settings: StackSettings) -> None:
    """Stop the services that a killed owner left running; only the holder of the lock owns services."""
    try:
        if stop_stack(layout.directory, timeout_s=settings.stop_timeout_s):
            logger.warning("stopped a stack that was left running in %s.", layout.root)
    except StackError as error:
        logger.warning("a stack was left running in %s and could not be stopped: %s", layout.root, error)


def _start_processes(
    settings: StackSettings, layout: Layout, specs: list[ServiceSpec], mirror: TargetMirror
) -> Callable[[], None]:
    supervisor = Supervisor(specs, layout.root, settings, [mirror.refresh])
    supervisor.start()
    return supervisor.stop


def _start_containers(
    settings: StackSettings, layout: Layout, specs: list[ServiceSpec], mirror: TargetMirror
) -> Callable[[], None]:
    ray_file = settings.prometheus.ray_discovery_file
    mounts = [Path(ray_file).parent] if ray_file and Path(ray_file).parent.is_dir() else []
    dashboards = extra_dashboards(settings) if settings.grafana.enabled else None
    render_compose(layout, specs, [*mounts, dashboards] if dashboards is not None else mounts)
    own_directories(layout)
    project = ComposeProject(layout.compose_file, project_name(layout.root))
    state = StackState(
        mode="compose",
        owner_pid=os.getpid(),
        owner_created=created_at(os.getpid()),
        project=project.name,
        services=[
            ServiceState(name=spec.name, title=spec.title, state="running", url=spec.url, version=spec.version)
            for spec in specs
        ],
    )
    write_state(layout.root, state)
    try:
        project.up(settings.ready_timeout_s * len(specs))
    except BaseException:
        with suppress(StackError):
            stop_stack(layout.directory, timeout_s=settings.stop_timeout_s)
        raise
    stopping = threading.Event()
    watcher = threading.Thread(target=_keep_targets, args=(mirror, stopping), name="rl-insight-stack", daemon=True)
    watcher.start()

    def stop() -> None:
        stopping.set()
        watcher.join()
        stop_stack(layout.directory, timeout_s=settings.stop_timeout_s)

    return stop


def _keep_targets(mirror: TargetMirror, stopping: threading.Event) -> None:
    """Keep the targets up to date; the engine supervises the containers."""
    while not stopping.wait(_TARGETS_EVERY_S):
        try:
            mirror.refresh()
        except OSError:
            logger.exception("cannot write the scrape targets; retrying")
