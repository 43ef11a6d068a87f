"""How batches leave the process. Only the base class is imported here; the rest is imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rl_insight.transport.base import LossHandler, Transport

if TYPE_CHECKING:
    from rl_insight.transport.file import FileTransport, read_batches
    from rl_insight.transport.http import HttpTransport
    from rl_insight.transport.memory import MemoryTransport, NullTransport
    from rl_insight.transport.registry import TransportFactory, available_backends, create_transport

__all__ = [
    "FileTransport",
    "HttpTransport",
    "LossHandler",
    "MemoryTransport",
    "NullTransport",
    "Transport",
    "TransportFactory",
    "available_backends",
    "create_transport",
    "read_batches",
]

_MODULES = {
    "FileTransport": "file",
    "HttpTransport": "http",
    "MemoryTransport": "memory",
    "NullTransport": "memory",
    "TransportFactory": "registry",
    "available_backends": "registry",
    "create_transport": "registry",
    "read_batches": "file",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
