"""Where a command looks for runs: `--server` and `--token`, the environment, or the data directory."""

from __future__ import annotations

import functools
import inspect
import socket
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.errors import ConfigError, InsightError
from rl_insight.reader.places import Place, Server, find_place

if TYPE_CHECKING:
    from rl_insight.server.config import ServerSettings

Result = TypeVar("Result")

ServerOption = Annotated[
    str | None, typer.Option("--server", help="The server's URL; default RL_INSIGHT_SERVER_URL, else the local one.")
]
TokenOption = Annotated[str | None, typer.Option("--token", help="The server's token; default RL_INSIGHT_TOKEN.")]
_chosen: ContextVar[tuple[str | None, str | None]] = ContextVar("chosen", default=(None, None))


def remote(command: Callable[..., Result]) -> Callable[..., Result]:
    """Give a command the options `--server` and `--token`; `place_of` and everything built on it honors them."""

    @functools.wraps(command)
    def run(*arguments: Any, server: str | None = None, token: str | None = None, **options: Any) -> Result:
        if server is not None and options.get("data_dir") is not None:
            raise ConfigError("give either --server or --data-dir, not both.")
        before = _chosen.set((server, token))
        try:
            return command(*arguments, **options)
        finally:
            _chosen.reset(before)

    signature = inspect.signature(command, eval_str=True)
    added = {"server": ServerOption, "token": TokenOption}
    parameters = [
        *signature.parameters.values(),
        *(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
            for name, kind in added.items()
        ),
    ]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {name: one.annotation for name, one in signature.parameters.items()} | added
    return run


def place_of(data_dir: str | None) -> Place:
    """Return the server or the data directory that the running command means."""
    server, token = _chosen.get()
    return find_place(server, token, data_dir)


def directory_of(data_dir: str | None) -> Path:
    """Return the data directory that a command means."""
    return Path(data_dir).expanduser() if data_dir else default_data_dir()


def running_record(data_dir: str | None) -> Server | None:
    """Return the server that a command means; None when it is to work on a data directory itself."""
    place = place_of(data_dir)
    return place if isinstance(place, Server) else None


def running_server(data_dir: str | None) -> Server:
    """Return the server that a command means.

    Raises:
        InsightError: none runs there.
    """
    found = running_record(data_dir)
    if found is None:
        raise InsightError(
            f"no server runs on {directory_of(data_dir)}. Start one with `rl-insight server start`, or name one with "
            "--server or RL_INSIGHT_SERVER_URL."
        )
    return found


def taken_ports(settings: ServerSettings) -> dict[str, int]:
    """Return the ports of a server, by the names of their settings, that other programs have taken."""
    taken: dict[str, int] = {}
    for key in ("port", "otlp_http_port", "otlp_grpc_port"):
        port = getattr(settings, key)
        try:
            with socket.create_server((settings.host, port or 0)):
                pass
        except OSError:
            taken[key] = port
    return taken
