"""`rl-insight server install`, and what `server start`, `stop` and `status` say about the stack."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.console import bars, say, say_table
from rl_insight.cli.opening import DataDir
from rl_insight.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import TaskID

    from rl_insight.stack.install import ProgressOf


def install(
    local_archive: Annotated[
        Path | None,
        typer.Option("--local-archive", metavar="DIR", help="Take the archives from here instead of downloading them."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Install also what is installed already.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="prometheus, tempo or grafana; may be repeated.")
    ] = None,
    use_version: Annotated[
        list[str] | None,
        typer.Option("--version", metavar="NAME=VERSION", help="Another version than usual, such as tempo=2.10.7."),
    ] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Download archives and checksum files from below this URL.")
    ] = None,
    allow_unverified: Annotated[
        bool, typer.Option("--allow-unverified", help="Also take a local archive that has no checksum file.")
    ] = False,
    data_dir: DataDir = None,
    config: Annotated[
        str | None, typer.Option(help="The server's YAML file: which programs, which versions, and where to.")
    ] = None,
    install_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the programs go; the same as stack.install_dir.")
    ] = None,
) -> None:
    """Install Prometheus, Tempo and Grafana for `server start --stack`, from archives or from their publishers."""
    from rl_insight.server.config import load_settings
    from rl_insight.stack.install import install_programs
    from rl_insight.stack.programs import PROGRAMS

    for name in only or ():
        if name not in PROGRAMS:
            raise ConfigError(f"{name!r} is not part of the stack: choose from {', '.join(PROGRAMS)}.")
    settings = load_settings(config, options={"data_dir": data_dir})
    configured = {name: getattr(settings.stack, name) for name in PROGRAMS}
    versions = {name: own.install_version for name, own in configured.items() if own.install_version}
    with _download_bars() as show:
        done = install_programs(
            settings.directory,
            install_dir=install_dir or settings.stack.install_dir,
            names=only or [name for name, own in configured.items() if own.enabled],
            local_archive=local_archive,
            force=force,
            versions=versions | _versions(use_version or [], list(PROGRAMS)),
            mirror=mirror,
            allow_unverified=allow_unverified,
            progress=show,
        )
    for one in done:
        what = "Installed" if one.is_new else "Already installed:"
        say(f"{what} {one.title} {one.version} at {one.path}")
    say("`rl-insight server start --stack` starts them with the server.")


def _versions(words: list[str], known: list[str]) -> dict[str, str]:
    versions = {}
    for word in words:
        name, _, version = word.partition("=")
        if name not in known or not version:
            raise ConfigError(f"{word!r} names no version: write it as tempo=2.10.7.")
        versions[name] = version
    return versions


@contextmanager
def _download_bars() -> Iterator[ProgressOf]:
    """Show a progress bar for each download, on a terminal."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    tasks: dict[str, TaskID] = {}
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with bars(TextColumn("{task.description:12}"), *columns) as shown:

        def show(title: str, have: int, total: int | None) -> None:
            if shown is None:
                return
            if title not in tasks:
                tasks[title] = shown.add_task(title, total=total)
            shown.update(tasks[title], completed=have, total=total)

        yield show


def stack_words(words: list[str], *, stack: bool, dashboards: Path | None = None) -> list[str]:
    """Return the words of `server start` with its options about the stack as settings; `--stack` may have a mode.

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
    """Return the services of a stack as rows of a table: name, state, address, version, restarts."""
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
    """Return what still runs of a stack whose server is gone, in words; empty when nothing does."""
    from rl_insight.stack import stack_status

    services = [service for service in stack_status(directory).services if service.state != "stopped"]
    return ", ".join(f"{one.title} (pid {one.pid})" if one.pid else one.title for one in services)


def say_stack(directory: Path) -> None:
    """Print how the stack of a data directory is doing; nothing where none was started."""
    rows = stack_rows(directory)
    if not rows:
        return
    say_table(["service", "state", "address", "version", "restarts"], rows)
    if any(row[0] == "Grafana" for row in rows):
        from rl_insight.stack.render import Layout

        say(f"Grafana's user is admin; the password is in {Layout(directory).password_file}.")


def stack_json(directory: Path) -> dict[str, Any]:
    """Return how the stack of a data directory is doing, for machines."""
    import msgspec

    from rl_insight.stack import stack_status

    plain: dict[str, Any] = msgspec.to_builtins(stack_status(directory))
    return plain
