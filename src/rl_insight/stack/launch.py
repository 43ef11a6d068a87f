"""Starts the stack beside a server, ends it, and tells how it is doing."""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

import msgspec

from rl_insight.collector.base import Sink
from rl_insight.collector.sinks.otlp import OtlpTraceSink
from rl_insight.errors import ConfigError
from rl_insight.schema.names import DEFAULT_NAMESPACE
from rl_insight.stack.compose import ComposeProject, engine_answers, own_directories, project_name, render_compose
from rl_insight.stack.discovery import TARGETS_FILE, TargetMirror
from rl_insight.stack.errors import MissingProgramError, StackError
from rl_insight.stack.ports import Ports, address, names_of, reachable_host, settle_ports
from rl_insight.stack.programs import PROGRAMS, FoundProgram, Version, find_program, parse_version
from rl_insight.stack.render import (
    Layout,
    MetricsEndpointOfServer,
    grafana_environment,
    render_grafana,
    render_prometheus,
    render_tempo,
)
from rl_insight.stack.service import ServiceSpec, end_group, is_ready
from rl_insight.stack.settings import MODES, STACK_RANGES, StackSettings
from rl_insight.stack.state import (
    ServiceState,
    StackState,
    created_at,
    is_alive,
    read_state,
    remove_state,
    take_lock,
    write_state,
)
from rl_insight.stack.supervisor import Supervisor

logger = logging.getLogger(__name__)

READY_PATHS = {"prometheus": "/-/ready", "tempo": "/ready", "grafana": "/api/health"}
_IMAGE_PATHS = {"prometheus": "/bin/prometheus", "tempo": "/tempo", "grafana": "/usr/share/grafana/bin/grafana"}
_IMAGE_GRAFANA_HOME = "/usr/share/grafana"
_POLL_S = 0.1
_TARGETS_EVERY_S = 1.0


class ServiceStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How one service is doing."""

    name: str
    title: str
    state: str
    """`running`, `starting`, `restarting`, `stopped`, or what the container engine calls it."""
    ready: bool
    url: str
    version: str
    pid: int | None
    restarts: int
    log: str
    last_exit: str


class StackStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How the stack is doing."""

    running: bool
    """True while somebody looks after it, or its containers run."""
    mode: str = ""
    services: list[ServiceStatus] = []


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
        return f"http://{address(reachable_host(self._settings.host), self.ports.tempo_otlp_http)}/v1/traces"

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
    check_settings(settings)
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


def stop_stack(directory: Path, *, timeout_s: float = 10.0) -> bool:
    """End the stack of a data directory, whoever started it; False when there was none."""
    layout = Layout(directory.expanduser().resolve())
    state = read_state(layout.root)
    if state is None:
        return False
    # The owner, if it still runs, takes the missing file as its order and ends the services itself.
    remove_state(layout.root)
    if state.mode == "compose":
        ComposeProject(layout.compose_file, state.project).down(timeout_s)
        return True
    if is_alive(state.owner_pid, state.owner_created) and state.owner_pid != os.getpid():
        _wait_gone(state, timeout_s * len(state.services) + 5.0)
    for service in reversed(state.services):
        if service.pid is not None:
            end_group(service.pid, partial(_is_gone, service), timeout_s)
    return True


def stack_status(directory: Path) -> StackStatus:
    """Tell how the stack of a data directory is doing."""
    layout = Layout(directory.expanduser().resolve())
    state = read_state(layout.root)
    if state is None:
        return StackStatus(running=False)
    if state.mode == "compose":
        return _compose_status(layout, state)
    owned = is_alive(state.owner_pid, state.owner_created)
    services = []
    for service in state.services:
        alive = is_alive(service.pid, service.created)
        described = service.state if alive or (owned and service.state == "restarting") else "stopped"
        services.append(_status(service, described))
    return StackStatus(running=owned, mode=state.mode, services=services)


def check_settings(settings: StackSettings) -> None:
    """Check what types cannot say.

    Raises:
        ConfigError: names the key and what is wrong with it.
    """
    if settings.mode not in MODES:
        raise ConfigError(f"stack.mode cannot be {settings.mode!r}: it must be one of {', '.join(MODES)}.")
    for key, (smallest, largest) in STACK_RANGES.items():
        value: object = settings
        for name in key.split("."):
            value = getattr(value, name)
        if not isinstance(value, int | float) or not smallest <= value <= largest:
            raise ConfigError(f"stack.{key} cannot be {value!r}: it must be from {smallest} to {largest}.")


def _end_leftovers(layout: Layout, settings: StackSettings) -> None:
    """End what an owner that was killed left running."""
    if read_state(layout.root) is not None:
        logger.warning("a stack was left running in %s: it is ended first.", layout.root)
        with suppress(StackError):
            stop_stack(layout.directory, timeout_s=settings.stop_timeout_s)


def _is_gone(service: ServiceState) -> bool:
    return not is_alive(service.pid, service.created)


def _wait_gone(state: StackState, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not all(map(_is_gone, state.services)) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _start_processes(
    settings: StackSettings, layout: Layout, server: MetricsEndpointOfServer, namespace: str, lock: IO[bytes]
) -> RunningStack:
    found = _find_programs(settings, layout.directory)
    ports = settle_ports(settings)
    versions = {name: program.version for name, program in found.items()}
    _render(settings, layout, server, ports, versions, namespace)
    specs = [
        dataclasses.replace(
            _spec(name, settings, layout, ports, _command(program, settings, layout, ports)),
            version=program.version_text,
        )
        for name, program in found.items()
    ]
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
    ports = settle_ports(settings)
    versions = {name: parse_version(f"version {program.image_tag}") or (0, 0, 0) for name, program in PROGRAMS.items()}
    _render(settings, layout, server, ports, versions, namespace)
    specs = []
    for name in names_of(settings):
        program = FoundProgram(PROGRAMS[name], Path(_IMAGE_PATHS[name]), versions[name])
        command = _command(program, settings, layout, ports, grafana_home=_IMAGE_GRAFANA_HOME)
        specs.append(dataclasses.replace(_spec(name, settings, layout, ports, command), version=program.version_text))
    ray_file = settings.prometheus.ray_discovery_file
    mounts = [Path(ray_file).parent] if ray_file and Path(ray_file).parent.is_dir() else []
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


def _find_programs(settings: StackSettings, directory: Path) -> dict[str, FoundProgram]:
    found, missing = {}, []
    for name in names_of(settings):
        try:
            found[name] = find_program(PROGRAMS[name], getattr(settings, name).binary_path, directory)
        except MissingProgramError as error:
            missing.append(str(error))
    if missing:
        raise MissingProgramError("the stack cannot be started:\n- " + "\n- ".join(missing))
    return found


def _render(
    settings: StackSettings,
    layout: Layout,
    server: MetricsEndpointOfServer,
    ports: Ports,
    versions: dict[str, Version],
    namespace: str,
) -> None:
    if settings.prometheus.enabled:
        render_prometheus(layout, settings, server, namespace=namespace)
    if settings.tempo.enabled:
        render_tempo(layout, settings, ports, versions["tempo"])
    if settings.grafana.enabled:
        render_grafana(layout, settings, ports, namespace=namespace)


def _spec(name: str, settings: StackSettings, layout: Layout, ports: Ports, command: list[str]) -> ServiceSpec:
    port = getattr(ports, name)
    return ServiceSpec(
        name=name,
        title=PROGRAMS[name].title,
        command=command,
        url=f"http://{address(reachable_host(settings.host), port)}",
        ready_path=READY_PATHS[name],
        log=layout.log(name),
        directory=layout.root,
        environment=grafana_environment(layout) if name == "grafana" else {},
    )


def _command(
    found: FoundProgram, settings: StackSettings, layout: Layout, ports: Ports, grafana_home: str | None = None
) -> list[str]:
    name, path, config = found.program.name, str(found.path), str(layout.config(found.program.name))
    if name == "prometheus":
        return [
            path,
            f"--config.file={config}",
            f"--storage.tsdb.path={layout.data(name)}",
            f"--storage.tsdb.retention.time={settings.prometheus.retention}",
            f"--web.listen-address={address(settings.host, ports.prometheus)}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
    if name == "tempo":
        return [path, f"-config.file={config}"]
    home = grafana_home or _grafana_home(found, settings)
    server = ["server"] if found.path.name == "grafana" else []
    return [path, *server, f"--homepath={home}", f"--config={config}"]


def _grafana_home(found: FoundProgram, settings: StackSettings) -> str:
    given = settings.grafana.home_path
    places = [Path(given).expanduser()] if given else [found.path.resolve().parent.parent, Path("/usr/share/grafana")]
    for place in places:
        if (place / "conf" / "defaults.ini").is_file():
            return str(place)
    raise MissingProgramError(
        f"Grafana cannot be started: its own files, such as conf/defaults.ini, are not in "
        f"{' or '.join(map(str, places))}. Set stack.grafana.home_path."
    )


def _compose_status(layout: Layout, state: StackState) -> StackStatus:
    try:
        states = ComposeProject(layout.compose_file, state.project).states()
    except StackError as error:
        logger.warning("%s", error)
        states = {}
    services = [_status(service, states.get(service.name, "stopped")) for service in state.services]
    return StackStatus(running=bool(states), mode=state.mode, services=services)


def _status(service: ServiceState, described: str) -> ServiceStatus:
    return ServiceStatus(
        name=service.name,
        title=service.title,
        state=described,
        ready=described == "running" and is_ready(service.url, READY_PATHS[service.name]),
        url=service.url,
        version=service.version,
        pid=service.pid if described != "stopped" else None,
        restarts=service.restarts,
        log=service.log,
        last_exit=service.last_exit,
    )
