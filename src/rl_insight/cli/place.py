"""Which server or data directory a command uses: `--server` and `--token`, `--data-dir`, or the environment."""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from contextvars import ContextVar
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rl_insight.config.paths import Server
from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.errors import ConfigError, InsightError
from rl_insight.reader.client import ServerClient
from rl_insight.reader.places import Place, find_place

if TYPE_CHECKING:
    from rl_insight.server.config import ServerSettings

Result = TypeVar("Result")

DataDir = Annotated[str | None, typer.Option("--data-dir", help="The server's data directory; default ~/.rl-insight.")]
_OPTIONS: dict[str, Any] = {
    "data_dir": DataDir,
    "server": Annotated[
        str | None, typer.Option("--server", help="The server's URL; default RL_INSIGHT_SERVER_URL, or the local one.")
    ],
    "token": Annotated[str | None, typer.Option("--token", help="The server's token; default RL_INSIGHT_TOKEN.")],
}
_given: ContextVar[Mapping[str, str | None]] = ContextVar("given", default=MappingProxyType({}))


def remote(command: Callable[..., Result]) -> Callable[..., Result]:
    """Add `--data-dir`, `--server` and `--token` to a command; the other functions of this module follow them."""

    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> Result:
        given = {name: options.pop(name, None) for name in _OPTIONS}
        if given["server"] is not None and given["data_dir"] is not None:
            raise ConfigError("give either --server or --data-dir, not both.")
        before = _given.set(given)
        try:
            return command(*arguments, **options)
        finally:
            _given.reset(before)

    own = inspect.signature(command, eval_str=True).parameters.values()
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _OPTIONS.items()
    ]
    run.__signature__ = inspect.Signature([*own, *added])  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    return run


def use_directory(path: Path) -> None:
    """Set the data directory of the running command, unless `--data-dir` was given."""
    given = _given.get()
    _given.set({**given, "data_dir": given.get("data_dir") or str(path)})


def current_place() -> Place:
    """Return the server or the data directory of the running command."""
    return find_place(**_given.get())


def current_directory() -> Path:
    """Return the data directory of the running command."""
    return directory_of(_given.get().get("data_dir"))


def current_server() -> Server | None:
    """Return the server of the running command; None if it opens run files itself."""
    place = current_place()
    return place if isinstance(place, Server) else None


def required_server() -> Server:
    """Return the server of the running command; raises if none is running."""
    server = current_server()
    if server is None:
        raise InsightError(
            f"no server runs on {current_directory()}. Start one with `rl-insight server start`, or name one with "
            "--server or RL_INSIGHT_SERVER_URL."
        )
    return server


def call(method: str, path: str, content: Any = None, *, timeout_s: float = 60.0, **conditions: Any) -> Any:
    """Send a request to the server of the running command; returns its JSON."""
    with closing(ServerClient(required_server(), timeout_s)) as client:
        return client.call(method, path, content, conditions)


def directory_of(data_dir: str | None) -> Path:
    """Return a data directory; without one, the default."""
    return Path(data_dir).expanduser() if data_dir else default_data_dir()


def taken_ports(settings: ServerSettings) -> dict[str, int]:
    """Return the ports of a server that are in use by other programs, by setting."""
    taken: dict[str, int] = {}
    for key in ("port", "otlp_http_port", "otlp_grpc_port"):
        port = getattr(settings, key)
        try:
            with socket.create_server((settings.host, port or 0)):
                pass
        except OSError:
            taken[key] = port
    return taken
