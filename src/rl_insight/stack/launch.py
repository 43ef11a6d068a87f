"""Starts the stack beside a server: as local processes, or as containers."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO

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
from rl_insight.stack.ports import Ports, names_of, settle_ports
from rl_insight.stack.programs import PROGRAMS, FoundProgram, parse_version
from rl_insight.stack.render import Layout, MetricsEndpointOfServer, extra_dashboards
from rl_insight.stack.settings import StackSettings
from rl_insight.stack.specs import find_grafana_home, find_programs, render_all, service_spec
from rl_insight.stack.state import ServiceState, StackState, created_at, take_lock, write_state
from rl_insight.stack.supervisor import Supervisor
from rl_insight.urls import reachable_address

logger = logging.getLogger(__name__)

_IMAGE_PATHS = {"prometheus": "/bin/prometheus", "tempo": "/tempo", "grafana": "/usr/share/grafana/bin/grafana"}
_IMAGE_GRAFANA_HOME = Path("/usr/share/grafana")
_TARGETS_EVERY_S = 1.0


class RunningStack:
    """A stack that was started; closes itself at the end of a `with` block."""

    def __init__(
        self, mode: str, ports: Ports, settings: StackSettings, urls: dict[str, str], stop: Callable[[], None]
    ) -> None:
        self.mode = mode
        """`compose` or `local`."""
        self.ports = ports
        self.urls = urls
        """The pages of the services, by name."""
        self._settings = settings
        self._stop = stop

    @property
    def otlp_endpoint(self) -> str | None:
        """Where Tempo takes spans over HTTP; None without Tempo."""
        if not self._settings.tempo.enabled:
            return None
        return f"http://{reachable_address(self._settings.host, self.ports.tempo_otlp_http)}/v1/traces"

    def sinks(self) -> list[Sink]:
        """Return the sinks that feed the stack; the collector owns them."""
        endpoint = self.otlp_endpoint
        return [OtlpTraceSink(endpoint, name="tempo")] if endpoint else []

    def stop(self) -> None:
        """End all services, the last one first; idempotent."""
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

    They are looked after by a thread of the calling process until `stop`, or until `stop_stack` in another process.

    Args:
        settings: which of them, and how.
        directory: the server's data directory; everything of the stack lies in its folder `stack`.
        server: where Prometheus finds the server's metrics.
        namespace: of the metrics; dashboards and rules are written for it.

    Raises:
        MissingProgramError: a program is not here; the message lists all that are missing.
        StackError: a port is taken, or a service does not become ready. Nothing is left running then.
        ConfigError: a setting is out of range.
    """
    check_limits(settings, "stack.")
    directory = directory.expanduser().resolve()
    layout = Layout(directory)
    lock = take_lock(layout.root)
    try:
        _end_leftovers(layout, settings)
        mode = settings.mode
        if mode == "auto":
            mode = "compose" if engine_answers() else "local"
        start = _start_containers if mode == "compose" else _start_processes
        return start(settings, layout, server, namespace, lock)
    except BaseException:
        lock.close()
        raise


def _end_leftovers(layout: Layout, settings: StackSettings) -> None:
    """End what an owner that was killed left running; the holder of the lock is the only owner there is."""
    try:
        if stop_stack(layout.directory, timeout_s=settings.stop_timeout_s):
            logger.warning("a stack was left running in %s: it was ended first.", layout.root)
    except StackError as error:
        logger.warning("a stack was left in %s, and could not be ended: %s", layout.root, error)


def _start_processes(
    settings: StackSettings, layout: Layout, server: MetricsEndpointOfServer, namespace: str, lock: IO[bytes]
) -> RunningStack:
    found = find_programs(settings, layout.directory)
    ports = settle_ports(settings)
    versions = {name: program.version for name, program in found.items()}
    home = find_grafana_home(found["grafana"], settings) if "grafana" in found else None
    render_all(settings, layout, server, ports, versions, namespace, home)
    specs = [service_spec(program, settings, layout, ports, home) for program in found.values()]
    mirror = TargetMirror(layout.directory / TARGETS_FILE, layout.discovery_file)
    mirror.refresh()
    supervisor = Supervisor(specs, layout.root, settings, [mirror.refresh])
    supervisor.start()

    def stop() -> None:
        supervisor.stop()
        lock.close()

    return RunningStack("local", ports, settings, {spec.name: spec.url for spec in specs}, stop)


def _start_containers(
    settings: StackSettings, layout: Layout, server: MetricsEndpointOfServer, namespace: str, lock: IO[bytes]
) -> RunningStack:
    if not engine_answers():
        raise MissingProgramError(
            "the stack cannot be started as containers: no container engine answers `docker compose`. "
            "Start the engine, or use stack.mode=local."
        )
    layout = replace(layout, mount=CONTAINER_ROOT)
    ports = settle_ports(settings)
    versions = {name: parse_version(f"version {program.image_tag}") or (0, 0, 0) for name, program in PROGRAMS.items()}
    render_all(settings, layout, server, ports, versions, namespace)
    specs = []
    for name in names_of(settings):
        program = FoundProgram(PROGRAMS[name], Path(_IMAGE_PATHS[name]), versions[name])
        specs.append(service_spec(program, settings, layout, ports, grafana_home=_IMAGE_GRAFANA_HOME))
    ray_file = settings.prometheus.ray_discovery_file
    mounts = [Path(ray_file).parent] if ray_file and Path(ray_file).parent.is_dir() else []
    own = extra_dashboards(settings) if settings.grafana.enabled else None
    mounts += [own] if own is not None else []
    render_compose(layout, specs, mounts)
    mirror = TargetMirror(layout.directory / TARGETS_FILE, layout.discovery_file)
    mirror.refresh()
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
        lock.close()

    return RunningStack("compose", ports, settings, {spec.name: spec.url for spec in specs}, stop)


def _keep_targets(mirror: TargetMirror, stopping: threading.Event) -> None:
    """Keep the targets up to date; the engine itself looks after the containers."""
    while not stopping.wait(_TARGETS_EVERY_S):
        try:
            mirror.refresh()
        except OSError:
            logger.exception("the scrape targets could not be written: it is tried again")
