"""The ports of the services, chosen before anything is rendered or started."""

from __future__ import annotations

import copy
import socket
from typing import Final

from rl_insight.stack.errors import StackError
from rl_insight.stack.settings import StackSettings

_PORTS: Final = (
    ("prometheus", "port", "Prometheus"),
    ("tempo", "port", "Tempo"),
    ("tempo", "grpc_port", "Tempo"),
    ("tempo", "otlp_http_port", "Tempo's OTLP receiver"),
    ("tempo", "otlp_grpc_port", "Tempo's OTLP receiver"),
    ("tempo", "memberlist_port", "Tempo"),
    ("grafana", "port", "Grafana"),
)
"""Section, key, and what the port is for."""
_INTERNAL: Final = frozenset({"grpc_port", "memberlist_port"})
"""Always on loopback: only Tempo itself connects to them."""


def with_free_ports(settings: StackSettings) -> StackSettings:
    """Return a copy of the settings with free ports in place of 0.

    Raises:
        StackError: ports are taken; the message names each of them, its purpose and its setting.
    """
    chosen = copy.deepcopy(settings)
    taken = []
    held: list[socket.socket] = []
    try:
        for section, key, title in _PORTS:
            own = getattr(chosen, section)
            if not own.enabled:
                continue
            port = int(getattr(own, key))
            probe = _bind("127.0.0.1" if key in _INTERNAL else settings.host, port)
            if probe is None:
                taken.append(f"{port} for {title} (stack.{section}.{key})")
                continue
            # Held until all are chosen, so that no two services get the same free port.
            held.append(probe)
            setattr(own, key, probe.getsockname()[1])
    finally:
        for probe in held:
            probe.close()
    if taken:
        raise StackError(
            f"ports are taken on {settings.host}: {', '.join(taken)}. "
            "Stop the programs that use them, or choose others; 0 chooses a free one."
        )
    return chosen


def _bind(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Like the services: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)
    except OSError:
        probe.close()
        return None
    return probe
