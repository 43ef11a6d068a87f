"""`rl-insight server install`, and the output of `server start`, `stop` and `status` about the stack."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from rl_insight.cli.completion import named_values
from rl_insight.cli.console import say, say_table, working
from rl_insight.cli.place import DataDir
from rl_insight.errors import ConfigError


def install(
    local_archive: Annotated[
        Path | None,
        typer.Option(
            "--local-archive", metavar="DIR", help="A directory with the archives, instead of downloading them."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Reinstall programs that are already installed.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="prometheus, tempo or grafana; may be repeated.")
    ] = None,
    use_version: Annotated[
        list[str] | None,
        typer.Option(
            "--version", metavar="NAME=VERSION", help="A version other than the default, such as tempo=2.10.7."
        ),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="The base URL for archives and checksum files.")
    ] = None,
    allow_unverified: Annotated[
        bool, typer.Option("--allow-unverified", help="Accept local archives without a checksum file.")
    ] = False,
    data_dir: DataDir = None,
    config: Annotated[
        str | None, typer.Option(help="The server's YAML file, for programs, versions and directory.")
    ] = None,
    install_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory for the programs; same as stack.install_dir.")
    ] = None,
) -> None:
    """Install Prometheus, Tempo and Grafana for `server start --stack`, from archives or by download."""
    from rl_insight.server.config import load_settings
    from rl_insight.stack.install import install_programs
    from rl_insight.stack.programs import PROGRAMS

    given = named_values(use_version or [], "is not a version: write it as tempo=2.10.7.")
    for name in (*(only or ()), *given):
        if name not in PROGRAMS:
            raise ConfigError(f"{name!r} is not part of the stack: choose from {', '.join(PROGRAMS)}.")
    settings = load_settings(config, options={"data_dir": data_dir})
    configured = {name: getattr(settings.stack, name) for name in PROGRAMS}
    versions = {name: own.install_version for name, own in configured.items() if own.install_version}
    with working("installing") as advance:
        done = install_programs(
            settings.directory,
            install_dir=install_dir or settings.stack.install_dir,
            names=only or [name for name, own in configured.items() if own.enabled],
            local_archive=local_archive,
            force=force,
            versions=versions | given,
            mirror=mirror,
            allow_unverified=allow_unverified,
            progress=lambda title, have, total: advance(have, total, title),
        )
    for one in done:
        what = "Installed" if one.is_new else "Already installed:"
        say(f"{what} {one.title} {one.version} at {one.path}")
    say("`rl-insight server start --stack` starts them with the server.")


def stack_words(words: list[str], *, stack: bool, dashboards: Path | None = None) -> list[str]:
    """Return the settings of `server start`, including its options about the stack; `--stack` may have a mode.

    >>> stack_words(["local", "port=19000"], stack=True)
    ['stack.enabled=true', 'stack.mode=local', 'port=19000']
    """
    if dashboards is not None:
        folder = json.dumps(str(dashboards.expanduser().absolute()))  # quoted: words are read as YAML
        words = [*words, f"stack.grafana.dashboards_dir={folder}"]
    if not stack:
        return words
    from rl_insight.stack.settings import MODES

    modes = [word for word in words if word in MODES]
    settings = [f"stack.mode={mode}" for mode in modes]
    return ["stack.enabled=true", *settings, *(word for word in words if word not in MODES)]


def stack_rows(directory: Path) -> list[list[str]]:
    """Return the services of a stack as table rows: name, state, URL, version, restarts."""
    from rl_insight.stack import stack_status

    return [
        [
            service.title,
            service.state if service.ready or service.state != "running" else "not ready",
            service.url,
            service.version,
            f"{service.restarts} restarts" + (f", last {service.last_exit}" if service.last_exit else ""),
        ]
        for service in stack_status(directory).services
    ]


def stack_left(directory: Path) -> str:
    """Return the services that outlived their server, as text."""
    from rl_insight.stack import stack_status

    services = [service for service in stack_status(directory).services if service.state != "stopped"]
    return ", ".join(f"{one.title} (pid {one.pid})" if one.pid else one.title for one in services)


def say_stack(directory: Path) -> None:
    """Print the state of a data directory's stack, if one was started."""
    rows = stack_rows(directory)
    if not rows:
        return
    say_table(["service", "state", "address", "version", "restarts"], rows)
    if any(row[0] == "Grafana" for row in rows):
        from rl_insight.stack.render import Layout

        say(f"Grafana's user is admin; the password is in {Layout(directory).password_file}.")
