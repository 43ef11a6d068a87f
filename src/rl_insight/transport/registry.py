"""Creates the transport named by `server.backend`: a built-in one, or one provided by another package."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import asdict

from rl_insight.config.model import InsightConfig
from rl_insight.errors import ConfigError
from rl_insight.schema import Process
from rl_insight.transport.base import Transport
from rl_insight.transport.memory import MemoryTransport, NullTransport

ENTRY_POINT_GROUP = "rl_insight.transports"

TransportFactory = Callable[[InsightConfig, Process], Transport]
"""The type of entry points in the group `rl_insight.transports`; called once per process."""


def create_transport(backend: str, config: InsightConfig, process: Process) -> Transport:
    """Create the transport for a backend name other than `auto`.

    Raises:
        ConfigError: no such backend, its package cannot be loaded, or its settings cannot be used.
    """
    factory = _BUILT_IN.get(backend) or _plugin(backend)
    if factory is None:
        raise unknown_backend(backend)
    transport = factory(config, process)
    if not isinstance(transport, Transport):
        raise ConfigError(
            f"server.backend {backend!r} made a {type(transport).__name__}, which is not a Transport. "
            "Its factory must return a subclass of rl_insight.transport.Transport."
        )
    return transport


def available_backends() -> list[str]:
    """Return every valid name for `server.backend`, sorted.

    >>> {"auto", "file", "http", "memory", "none"} <= set(available_backends())
    True
    """
    plugins = (entry.name for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))
    return sorted({"auto", *_BUILT_IN, *plugins})


def unknown_backend(backend: str) -> ConfigError:
    """Return the error for an unknown backend."""
    return ConfigError(f"unknown server.backend {backend!r}. Choose one of: {', '.join(available_backends())}.")


def _plugin(name: str) -> TransportFactory | None:
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        try:
            factory: TransportFactory = entry.load()
        except Exception as error:
            raise ConfigError(
                f"server.backend {name!r} cannot be loaded from {entry.value!r}: {error}. "
                "Repair or uninstall the package that provides it."
            ) from error
        return factory
    return None


def make_http(config: InsightConfig, process: Process, *, bundles: bool = False) -> Transport:
    """Return the transport to a server; with `bundles`, batches in one request are merged, as hubs do."""
    from rl_insight.transport.http import HttpTransport

    server, settings = config.server, asdict(config.http)
    return HttpTransport(server.url, process_id=process.process_id, token=server.token, bundles=bundles, **settings)


def _make_file(config: InsightConfig, process: Process) -> Transport:
    from rl_insight.transport.file import FileTransport

    return FileTransport(config.file.directory, process.process_id, config.file.rotate_bytes)


_BUILT_IN: dict[str, TransportFactory] = {
    "http": make_http,
    "file": _make_file,
    "memory": lambda _config, _process: MemoryTransport(),
    "none": lambda _config, _process: NullTransport(),
}
