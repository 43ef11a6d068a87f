"""The settings of the stack: the section `stack` of the server's settings. `docs/stack.md` describes every key."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final, Literal, get_args

from msgspec import Meta

from rl_insight.config.model import Port

Mode = Literal["auto", "compose", "local"]
MODES: Final = get_args(Mode)
"""How the stack can run: as containers, as local processes, or as containers if an engine responds."""

Wait = Annotated[float, Meta(ge=0.1, le=3600)]

RAY_DISCOVERY_FILE: Final = "/tmp/ray/prom_metrics_service_discovery.json"  # noqa: S108 -- Ray writes it there


@dataclass(slots=True)
class ServiceSettings:
    """Settings common to all three services."""

    enabled: bool = True
    """Whether it is part of the stack."""
    port: Port = 0
    """For its page and its API; 0 chooses a free port, here and below."""
    binary_path: str | None = None
    """The program; null looks in the install directory, then on PATH."""
    install_version: str | None = None
    """The version that `server install` downloads; null means the default one."""


@dataclass(slots=True)
class PrometheusSettings(ServiceSettings):
    """Prometheus."""

    port: Port = 9090
    scrape_interval_s: Wait = 5.0
    """Between two scrapes of a target."""
    retention: str = "15d"
    """How long samples are kept."""
    remote_write_urls: list[str] = field(default_factory=list)
    """Where samples are forwarded: VictoriaMetrics, Mimir, another Prometheus."""
    ray_discovery_file: str | None = RAY_DISCOVERY_FILE
    """Ray's list of its nodes' metrics endpoints, read if it exists; null ignores it."""


@dataclass(slots=True)
class TempoSettings(ServiceSettings):
    """Tempo."""

    port: Port = 3200
    grpc_port: Port = 0
    """For its internal communication."""
    otlp_http_port: Port = 14318
    """Where the server sends spans; 4318 is the server's own port."""
    otlp_grpc_port: Port = 14317
    """For other programs that send spans to Tempo over gRPC."""
    memberlist_port: Port = 0
    """For its ring of one."""
    retention: str = "168h"
    """How long traces are kept."""


@dataclass(slots=True)
class GrafanaSettings(ServiceSettings):
    """Grafana."""

    port: Port = 3000
    home_path: str | None = None
    """Where its own files are; null looks next to the program."""
    dashboards_dir: str | None = None
    """A folder with more dashboards as JSON files; its subfolders become folders in Grafana."""
    anonymous: bool = True
    """Whether anyone who can reach it may view it without a password; on loopback only."""


@dataclass(slots=True)
class StackSettings:
    """Prometheus, Tempo and Grafana next to the server."""

    enabled: bool = False
    """Whether they are started with the server."""
    mode: Mode = "auto"
    """`compose`, `local`, or `auto`: containers if a container engine responds, else local processes."""
    host: str = "127.0.0.1"
    """The address that all three listen on."""
    ready_timeout_s: Wait = 90.0
    """For each of them to become ready."""
    stop_timeout_s: Wait = 10.0
    """For each of them to end, before it is killed."""
    restart_delay_s: Annotated[float, Meta(ge=0.05, le=3600)] = 1.0
    """Before one that crashed is restarted; it doubles with each crash."""
    restart_delay_max_s: Annotated[float, Meta(ge=0.05)] = 60.0
    """The longest such pause."""
    install_dir: str | None = None
    """Where `server install` puts the programs; null means the folder `stack/programs` of the data directory."""
    prometheus: PrometheusSettings = field(default_factory=PrometheusSettings)
    tempo: TempoSettings = field(default_factory=TempoSettings)
    grafana: GrafanaSettings = field(default_factory=GrafanaSettings)
