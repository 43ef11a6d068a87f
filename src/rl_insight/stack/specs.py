"""What it takes to run the three services: the programs, their configuration and their command lines."""

from __future__ import annotations

import re
from pathlib import Path

from rl_insight.stack.errors import MissingProgramError
from rl_insight.stack.ports import Ports, names_of
from rl_insight.stack.programs import PROGRAMS, FoundProgram, Version, ask, find_program, programs_directory
from rl_insight.stack.render import (
    Layout,
    MetricsEndpointOfServer,
    grafana_environment,
    render_grafana,
    render_prometheus,
    render_tempo,
)
from rl_insight.stack.service import ServiceSpec
from rl_insight.stack.settings import StackSettings
from rl_insight.urls import host_and_port, reachable_address

_VAR_TEMPO = re.compile(r"""^\s+-([\w.-]+) string\s+[^\n]*\(default "/var/tempo([^"\n]*)"\)""", re.MULTILINE)
"""An option as Go programs list it, whose default is below /var/tempo."""

READY_PATHS = {"prometheus": "/-/ready", "tempo": "/ready", "grafana": "/api/health"}
"""What each service answers with 200 once it can be used."""


def find_programs(settings: StackSettings, directory: Path) -> dict[str, FoundProgram]:
    """Return the programs of the services that are switched on.

    Raises:
        MissingProgramError: some are not here; the message lists them all.
    """
    found, missing = {}, []
    home = programs_directory(directory, settings.install_dir)
    for name in names_of(settings):
        try:
            found[name] = find_program(PROGRAMS[name], getattr(settings, name).binary_path, home)
        except MissingProgramError as error:
            missing.append(str(error))
    if missing:
        raise MissingProgramError("the stack cannot be started:\n- " + "\n- ".join(missing))
    return found


def render_all(
    settings: StackSettings,
    layout: Layout,
    server: MetricsEndpointOfServer,
    ports: Ports,
    versions: dict[str, Version],
    namespace: str,
    grafana_home: Path | None = None,
) -> None:
    """Write the configuration of the services that are switched on; `grafana_home` has Grafana's own files."""
    if settings.prometheus.enabled:
        render_prometheus(layout, settings, server, namespace=namespace)
    if settings.tempo.enabled:
        render_tempo(layout, settings, ports, versions["tempo"])
    if settings.grafana.enabled:
        render_grafana(layout, settings, ports, namespace=namespace, program_home=grafana_home)


def service_spec(
    found: FoundProgram, settings: StackSettings, layout: Layout, ports: Ports, grafana_home: Path | None = None
) -> ServiceSpec:
    """Return how a service is run; `grafana_home` is where Grafana has its own files, if that is known."""
    name = found.program.name
    return ServiceSpec(
        name=name,
        title=found.program.title,
        command=_command(found, settings, layout, ports, grafana_home),
        url=f"http://{reachable_address(settings.host, getattr(ports, name))}",
        ready_path=READY_PATHS[name],
        log=layout.log(name),
        directory=layout.root,
        version=found.version_text,
        environment=grafana_environment(layout) if name == "grafana" else {},
    )


def _command(
    found: FoundProgram, settings: StackSettings, layout: Layout, ports: Ports, grafana_home: Path | None
) -> list[str]:
    name, path, config = found.program.name, str(found.path), layout.seen(layout.config(found.program.name))
    if name == "prometheus":
        return [
            path,
            f"--config.file={config}",
            f"--storage.tsdb.path={layout.seen(layout.data(name))}",
            f"--storage.tsdb.retention.time={settings.prometheus.retention}",
            f"--web.listen-address={host_and_port(settings.host, ports.prometheus)}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
    if name == "tempo":
        return [path, f"-config.file={config}", *tempo_paths(found.path, layout.data(name))]
    home = grafana_home or find_grafana_home(found, settings)
    server = [] if found.path.name == "grafana-server" else ["server"]
    return [path, *server, f"--homepath={home}", f"--config={config}"]


def tempo_paths(program: Path, data: Path) -> list[str]:
    """Return the options that move everything Tempo would write to /var/tempo below a directory of ours.

    Which parts of Tempo write there, and how to tell them, differs from version to version: Tempo itself knows.
    """
    return [f"-{name}={data / place.lstrip('/')}" for name, place in _VAR_TEMPO.findall(ask(program, "-help"))]


def find_grafana_home(found: FoundProgram, settings: StackSettings) -> Path:
    """Return where Grafana has its own files.

    Raises:
        MissingProgramError: they are not where they usually are.
    """
    given = settings.grafana.home_path
    places = (
        [Path(given).expanduser().absolute()]
        if given
        else [found.path.resolve().parent.parent, Path("/usr/share/grafana")]
    )
    for place in places:
        if (place / "conf" / "defaults.ini").is_file():
            return place
    raise MissingProgramError(
        f"Grafana cannot be started: its own files, such as conf/defaults.ini, are not in "
        f"{' or '.join(map(str, places))}. Set stack.grafana.home_path."
    )
