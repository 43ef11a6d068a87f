"""How to run the three services: their programs, configuration and command lines."""

from __future__ import annotations

import re
from pathlib import Path

from rl_insight.stack.errors import MissingProgramError
from rl_insight.stack.programs import PROGRAMS, FoundProgram, ask, find_program, parse_version, programs_directory
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
"""An option in the help text of a Go program, with a default below /var/tempo."""

READY_PATHS = {"prometheus": "/-/ready", "tempo": "/ready", "grafana": "/api/health"}
"""Responds with 200 once the service can be used."""
_IMAGE_PATHS = {"prometheus": "/bin/prometheus", "tempo": "/tempo", "grafana": "/usr/share/grafana/bin/grafana"}
_IMAGE_GRAFANA_HOME = Path("/usr/share/grafana")


def find_programs(settings: StackSettings, directory: Path) -> dict[str, FoundProgram]:
    """Return the programs of the services that are enabled.

    Raises:
        MissingProgramError: some are missing; the message lists them all.
    """
    found, missing = {}, []
    home = programs_directory(directory, settings.install_dir)
    for name in enabled_names(settings):
        try:
            found[name] = find_program(PROGRAMS[name], getattr(settings, name).binary_path, home)
        except MissingProgramError as error:
            missing.append(str(error))
    if missing:
        raise MissingProgramError("the stack cannot be started:\n- " + "\n- ".join(missing))
    return found


def image_programs(settings: StackSettings) -> dict[str, FoundProgram]:
    """Return the programs of the services that are enabled, as they are in their container images."""
    found = {}
    for name in enabled_names(settings):
        version = parse_version(f"version {PROGRAMS[name].pinned}") or (0, 0, 0)
        found[name] = FoundProgram(PROGRAMS[name], Path(_IMAGE_PATHS[name]), version)
    return found


def enabled_names(settings: StackSettings) -> list[str]:
    """Return the enabled services, in start order."""
    return [name for name in PROGRAMS if getattr(settings, name).enabled]


def render_services(
    settings: StackSettings,
    layout: Layout,
    server: MetricsEndpointOfServer,
    namespace: str,
    found: dict[str, FoundProgram],
) -> list[ServiceSpec]:
    """Write the configuration of the services, and return how to run them.

    Raises:
        MissingProgramError: Grafana's own files are missing.
    """
    home = None
    if "grafana" in found:
        home = find_grafana_home(found["grafana"], settings) if layout.mount is None else _IMAGE_GRAFANA_HOME
        render_grafana(layout, settings, namespace=namespace, program_home=home)
    if "prometheus" in found:
        render_prometheus(layout, settings, server, namespace=namespace)
    if "tempo" in found:
        render_tempo(layout, settings, found["tempo"].version)
    return [
        ServiceSpec(
            name=name,
            title=program.program.title,
            command=_command(program, settings, layout, home),
            url=f"http://{reachable_address(settings.host, getattr(settings, name).port)}",
            ready_path=READY_PATHS[name],
            log=layout.log(name),
            directory=layout.root,
            version=program.version_text,
            environment=grafana_environment(layout) if name == "grafana" else {},
        )
        for name, program in found.items()
    ]


def _command(found: FoundProgram, settings: StackSettings, layout: Layout, grafana_home: Path | None) -> list[str]:
    name, path, config = found.program.name, str(found.path), layout.seen(layout.config(found.program.name))
    if name == "prometheus":
        return [
            path,
            f"--config.file={config}",
            f"--storage.tsdb.path={layout.seen(layout.data(name))}",
            f"--storage.tsdb.retention.time={settings.prometheus.retention}",
            f"--web.listen-address={host_and_port(settings.host, settings.prometheus.port)}",
            "--enable-feature=exemplar-storage",
            "--log.level=warn",
        ]
    if name == "tempo":
        return [path, f"-config.file={config}", *tempo_paths(found.path, layout.data(name))]
    server = [] if found.path.name == "grafana-server" else ["server"]
    return [path, *server, f"--homepath={grafana_home}", f"--config={config}"]


def tempo_paths(program: Path, data: Path) -> list[str]:
    """Return the options that make Tempo write to our directory instead of /var/tempo.

    Which parts of Tempo write there, and their options, differ between versions, so they are read from its help text.
    """
    return [f"-{name}={data / place.lstrip('/')}" for name, place in _VAR_TEMPO.findall(ask(program, "-help"))]


def find_grafana_home(found: FoundProgram, settings: StackSettings) -> Path:
    """Return the directory of Grafana's own files.

    Raises:
        MissingProgramError: they are not in the usual places.
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
