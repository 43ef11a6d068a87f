"""Writes the configuration of the three services to the data directory, from the templates of this package."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

from rl_insight.files import replace_file
from rl_insight.schema.names import DEFAULT_NAMESPACE
from rl_insight.stack.errors import StackError
from rl_insight.stack.programs import Version
from rl_insight.stack.settings import StackSettings
from rl_insight.urls import host_and_port, is_loopback, reachable_address

# Earlier versions wrote the same marker: it identifies files that may be replaced.
MARK = "Written by rl-insight at each start: changes are lost. See docs/stack.md for what can be set."
HOME_DASHBOARD = "rl-insight-overview.json"
_FIRST_WITH_CUTOFF = (2, 10, 0)
_FIRST_WITH_LIVE_PERIOD = (2, 9, 0)
_DEB_BUNDLED_PLUGINS = Path("/var/lib/grafana/plugins-bundled")


@dataclass(frozen=True, slots=True)
class MetricsEndpointOfServer:
    """Where the server serves its metrics, and the credentials for them."""

    url: str
    """The server's URL, without a path."""
    token: str | None = None
    certificate: str | None = None
    """The path of the certificate, for a server with TLS."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the stack's files are."""

    directory: Path
    """The data directory of the server."""
    mount: Path | None = None
    """Where containers see `root`; None for local processes."""

    @property
    def root(self) -> Path:
        """The stack's directory."""
        return self.directory / "stack"

    def seen(self, path: Path) -> str:
        """Return a path in `root` as the services see it."""
        return str(path if self.mount is None else self.mount / path.relative_to(self.root))

    def config(self, name: str) -> Path:
        """Return the main configuration file of a service."""
        ending = {"prometheus": "prometheus.yml", "tempo": "tempo.yml", "grafana": "grafana.ini"}[name]
        return self.root / name / ending

    def data(self, name: str) -> Path:
        """Return the data directory of a service."""
        return self.root / name / "data"

    def log(self, name: str) -> Path:
        """Return the log of a service."""
        return self.root / "logs" / f"{name}.log"

    @property
    def discovery_file(self) -> Path:
        """The targets that Prometheus scrapes besides the server."""
        return self.root / "prometheus" / "targets" / "registered.json"

    @property
    def password_file(self) -> Path:
        """The password of Grafana's administrator."""
        return self.root / "grafana" / "admin-password"

    @property
    def compose_file(self) -> Path:
        """The Compose file."""
        return self.root / "compose.yaml"


def render_prometheus(
    layout: Layout, settings: StackSettings, server: MetricsEndpointOfServer, *, namespace: str
) -> None:
    """Write Prometheus' configuration and its alert rules."""
    own = settings.prometheus
    parts = urlsplit(server.url)
    credentials = layout.root / "prometheus" / "server-token"
    token_file = {"credentials_file": layout.seen(credentials)}
    if server.token is not None:
        replace_file(credentials, server.token.encode(), mode=0o600)
    tls: dict[str, Any] = {}
    if parts.scheme == "https":
        # A certificate for a public name does not cover 127.0.0.1, which no other machine can impersonate.
        loopback = is_loopback(parts.hostname or "")
        tls = (
            {"insecure_skip_verify": True}
            if loopback
            else {"ca_file": server.certificate}
            if server.certificate
            else {}
        )
    rules = layout.root / "prometheus" / "rules.yml"
    text = package_files("rules").joinpath("rl-insight.yml").read_text(encoding="utf-8")
    write_marked(rules, renamed(text, namespace))
    ray_file = own.ray_discovery_file
    _render(
        "prometheus.yml",
        layout.config("prometheus"),
        # Left out without a token: Prometheus would send an empty one.
        raw={"authorization": "" if server.token is None else f"authorization: {json.dumps(token_file)}"},
        scrape_interval=duration(own.scrape_interval_s),
        scrape_timeout=duration(min(own.scrape_interval_s, 10.0)),
        evaluation_interval=duration(min(max(own.scrape_interval_s, 1.0), 15.0)),
        rules_file=layout.seen(rules),
        server_scheme=parts.scheme,
        server_address=parts.netloc,
        tls_config=tls,
        discovery_files=[layout.seen(layout.discovery_file)],
        ray_files=[ray_file] if ray_file else [layout.seen(layout.discovery_file.with_name("ray.json"))],
        remote_write=[{"url": url} for url in own.remote_write_urls],
    )
    layout.data("prometheus").mkdir(parents=True, exist_ok=True)
    layout.discovery_file.parent.mkdir(parents=True, exist_ok=True)


def render_tempo(layout: Layout, settings: StackSettings, version: Version) -> None:
    """Write Tempo's configuration; versions 2 and 3 reject each other's."""
    own, data = settings.tempo, layout.data("tempo")
    for directory in (data / "wal", data / "blocks"):
        directory.mkdir(parents=True, exist_ok=True)
    _render(
        "tempo-2.yml" if version[0] < 3 else "tempo-3.yml",
        layout.config("tempo"),
        raw={
            # By default, newer versions hide the last 30 s from searches; older ones reject the settings.
            "live_search": "query_frontend: {query_end_cutoff: 0s}" if version >= _FIRST_WITH_CUTOFF else "",
            "live_traces": "  trace_live_period: 5s" if version >= _FIRST_WITH_LIVE_PERIOD else "",
        },
        host=settings.host,
        port=own.port,
        grpc_port=own.grpc_port,
        otlp_http=host_and_port(settings.host, own.otlp_http_port),
        otlp_grpc=host_and_port(settings.host, own.otlp_grpc_port),
        memberlist_port=own.memberlist_port,
        retention=own.retention,
        wal_directory=layout.seen(data / "wal"),
        blocks_directory=layout.seen(data / "blocks"),
    )


def render_grafana(layout: Layout, settings: StackSettings, *, namespace: str, program_home: Path | None) -> None:
    """Write Grafana's configuration, data sources and dashboards; `program_home` contains Grafana's files."""
    home = layout.root / "grafana"
    provisioning, dashboards = home / "provisioning", home / "dashboards"
    for directory in (layout.data("grafana"), home / "logs", home / "plugins", dashboards):
        directory.mkdir(parents=True, exist_ok=True)
    for kind in ("plugins", "alerting"):
        # Grafana logs errors for kinds of provisioning without a directory.
        (provisioning / kind).mkdir(parents=True, exist_ok=True)
    if not layout.password_file.is_file():
        replace_file(layout.password_file, secrets.token_urlsafe(18).encode(), mode=0o600)
    for name, text in dashboard_files(namespace).items():
        replace_file(dashboards / name, text.encode())
    prefix = f"{namespace}_" if namespace else ""
    _render(
        "datasources.yml",
        provisioning / "datasources" / "rl-insight.yml",
        raw={"namespace": prefix},
        prometheus_url=f"http://{reachable_address(settings.host, settings.prometheus.port)}",
        tempo_url=f"http://{reachable_address(settings.host, settings.tempo.port)}",
        scrape_interval=duration(settings.prometheus.scrape_interval_s),
    )
    _render(
        "dashboards.yml",
        provisioning / "dashboards" / "rl-insight.yml",
        raw={"more": _more_dashboards(settings)},
        dashboards_directory=layout.seen(dashboards),
    )
    _render(
        "grafana.ini",
        layout.config("grafana"),
        raw={
            "data_directory": layout.seen(layout.data("grafana")),
            "logs_directory": layout.seen(home / "logs"),
            "plugins_directory": layout.seen(home / "plugins"),
            # An image has its files where Grafana expects them.
            "bundled_plugins": bundled_plugins(program_home if layout.mount is None else None),
            "provisioning_directory": layout.seen(provisioning),
            "host": settings.host,
            "port": settings.grafana.port,
            "password_file": layout.seen(layout.password_file),
            "anonymous": "true" if settings.grafana.anonymous and is_loopback(settings.host) else "false",
            "home_dashboard": layout.seen(dashboards / HOME_DASHBOARD),
        },
    )


def grafana_environment(layout: Layout) -> dict[str, str]:
    """Return environment variables for Grafana, which its image or the user may have set to other paths."""
    home = layout.root / "grafana"
    return {
        "GF_PATHS_DATA": layout.seen(layout.data("grafana")),
        "GF_PATHS_LOGS": layout.seen(home / "logs"),
        "GF_PATHS_PLUGINS": layout.seen(home / "plugins"),
        "GF_PATHS_PROVISIONING": layout.seen(home / "provisioning"),
    }


def bundled_plugins(home: Path | None, packaged: Path = _DEB_BUNDLED_PLUGINS) -> str:
    """Return the setting for Grafana's bundled plugins, which include its data sources; empty if it is not needed.

    Since 13.1.2, packages for Debian and Red Hat keep them outside Grafana's home.
    """
    if home is None or (home / "data" / "plugins-bundled").is_dir() or not packaged.is_dir():
        return ""
    return f"bundled_plugins = {packaged}"


def extra_dashboards(settings: StackSettings) -> Path | None:
    """Return the user's folder of dashboards.

    Raises:
        StackError: it does not exist.
    """
    if settings.grafana.dashboards_dir is None:
        return None
    folder = Path(settings.grafana.dashboards_dir).expanduser().absolute()
    if not folder.is_dir():
        raise StackError(f"the folder {folder} does not exist. Correct stack.grafana.dashboards_dir, or remove it.")
    return folder


def _more_dashboards(settings: StackSettings) -> str:
    folder = extra_dashboards(settings)
    return "" if folder is None else fill("more-dashboards.yml", directory=str(folder))


def dashboard_files(namespace: str = DEFAULT_NAMESPACE) -> dict[str, str]:
    """Return the dashboards of this package by file name, for a namespace of metrics."""
    found = sorted(package_files("dashboards").iterdir(), key=lambda entry: entry.name)
    return {
        entry.name: renamed(entry.read_text(encoding="utf-8"), namespace)
        for entry in found
        if entry.name.endswith(".json")
    }


def renamed(text: str, namespace: str) -> str:
    """Return text with the default metrics namespace replaced."""
    return text.replace(f"{DEFAULT_NAMESPACE}_", f"{namespace}_" if namespace else "")


def duration(seconds: float) -> str:
    """Return a duration in the format of these programs.

    >>> duration(5.0), duration(0.2)
    ('5s', '200ms')
    """
    return f"{seconds:.0f}s" if seconds == int(seconds) else f"{seconds * 1000:.0f}ms"


def package_files(kind: str) -> Path:
    """Return a directory of data files of this package."""
    return Path(__file__).parent / kind


def fill(template: str, raw: dict[str, Any] | None = None, **values: Any) -> str:
    """Return a template with its values filled in as JSON, which is also YAML, so that no string can break the file."""
    text = package_files("templates").joinpath(template).read_text(encoding="utf-8")
    quoted = {name: json.dumps(value) for name, value in values.items()}
    return Template(text).substitute({**quoted, **(raw or {})})


def _render(template: str, path: Path, raw: dict[str, Any] | None = None, **values: Any) -> None:
    write_marked(path, fill(template, raw, **values))


def write_marked(path: Path, text: str) -> None:
    """Write a configuration file, but never replace one that was not written by rl-insight.

    Raises:
        StackError: the existing file is not ours.
    """
    comment = ";" if path.suffix == ".ini" else "#"
    if path.is_file() and MARK not in path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]:
        raise StackError(f"{path} was not written by rl-insight and is not replaced: move it away, and start again.")
    replace_file(path, f"{comment} {MARK}\n{text}".encode())
