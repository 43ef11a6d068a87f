"""The addresses of the three services, settled before anything is rendered or started."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass

from rl_insight.stack.errors import StackError
from rl_insight.stack.settings import StackSettings


@dataclass(frozen=True, slots=True)
class Ports:
    """Every port of the stack; none is 0."""

    prometheus: int
    tempo: int
    tempo_grpc: int
    tempo_otlp_http: int
    tempo_otlp_grpc: int
    tempo_memberlist: int
    grafana: int


_KEYS = {
    "prometheus": ("Prometheus", "prometheus.port"),
    "tempo": ("Tempo", "tempo.port"),
    "tempo_grpc": ("Tempo", "tempo.grpc_port"),
    "tempo_otlp_http": ("Tempo's OTLP receiver", "tempo.otlp_http_port"),
    "tempo_otlp_grpc": ("Tempo's OTLP receiver", "tempo.otlp_grpc_port"),
    "tempo_memberlist": ("Tempo", "tempo.memberlist_port"),
    "grafana": ("Grafana", "grafana.port"),
}

_INTERNAL = frozenset({"tempo_grpc", "tempo_memberlist"})
"""Always on loopback: only Tempo itself speaks to them."""


def settle_ports(settings: StackSettings) -> Ports:
    """Return the ports to use: those of the settings, and free ones where they say 0.

    Raises:
        StackError: ports are taken; the message names each, what it is for, and the key that changes it.
    """
    enabled = {name: getattr(settings, name).enabled for name in ("prometheus", "tempo", "grafana")}
    chosen: dict[str, int] = {}
    taken = []
    held: list[socket.socket] = []
    try:
        for field, (title, key) in _KEYS.items():
            section, _, name = key.partition(".")
            port = int(getattr(getattr(settings, section), name))
            host = "127.0.0.1" if field in _INTERNAL else settings.host
            probe = _bind(host, port) if enabled[section] else None
            if probe is not None:
                # Held until all are settled, so that no two services are given the same free port.
                held.append(probe)
                port = probe.getsockname()[1]
            elif enabled[section]:
                taken.append(f"{port} for {title} (stack.{key})")
            chosen[field] = port
    finally:
        for probe in held:
            probe.close()
    if taken:
        raise StackError(
            f"ports are taken on {settings.host}: {', '.join(taken)}. "
            "Stop what uses them, or choose others; 0 takes a free one."
        )
    return Ports(**chosen)


def _bind(host: str, port: int) -> socket.socket | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    probe = socket.socket(family, socket.SOCK_STREAM)
    try:
        # As the services do: a port in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((host, port))
        probe.listen(1)
    except OSError:
        probe.close()
        return None
    return probe


def names_of(settings: StackSettings) -> Iterable[str]:
    """Return the services that are switched on, in the order in which they start."""
    return [name for name in ("prometheus", "tempo", "grafana") if getattr(settings, name).enabled]
