"""The server's settings: from a YAML file, `key=value` words on the command line, and options.

`docs/server.md` describes every key.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from rl_insight.collector.sinks.registry import make_sinks
from rl_insight.config.checks import check_namespace
from rl_insight.config.loading import load_layers, read_yaml
from rl_insight.config.model import MEBIBYTE, Port
from rl_insight.config.paths import data_dir as default_data_dir
from rl_insight.errors import ConfigError
from rl_insight.schema.names import DEFAULT_NAMESPACE, Severity
from rl_insight.server.older_settings import translated
from rl_insight.stack import StackSettings
from rl_insight.urls import clean_token, is_loopback, split_http_url, without_credentials

OTLP_HTTP_PORT = 4318
OTLP_GRPC_PORT = 4317
_TOKEN = re.compile(r"[A-Za-z0-9_-]{16,}")

Bytes = Annotated[int, Meta(ge=1024)]
Interval = Annotated[float, Meta(ge=0.1, le=86_400)]
NotNegative = Annotated[float, Meta(ge=0)]


@dataclass(slots=True)
class RetentionSettings:
    """When runs are deleted; runs in use never are."""

    max_age_days: NotNegative | None = None
    """Runs last written longer ago are deleted; null keeps them forever."""
    max_total_gb: NotNegative | None = None
    """Above this, the oldest runs are deleted until the rest fits."""
    interval_s: Interval = 60.0
    """How often retention is applied."""


@dataclass(slots=True)
class SqlSettings:
    """SQL queries on a run."""

    enabled: bool = False
    """Whether `POST /api/v1/sql` is enabled."""
    max_answer_bytes: Bytes = 16 * MEBIBYTE
    """The maximum size of the rows of a response as JSON; further rows are dropped, and `truncated` is set."""
    memory_bytes: Annotated[int, Meta(ge=512 * MEBIBYTE)] = 1024 * MEBIBYTE
    """The address space of the process that runs a query; one query runs at a time."""
    max_run_bytes: Bytes = 2048 * MEBIBYTE
    """The largest run file that is copied for a query; commits to the run wait for the copy, one second per GB."""


@dataclass(slots=True)
class ScrapeSettings:
    """How registered Prometheus targets are scraped."""

    interval_s: Interval = 5.0
    """Between two scrapes of a target."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = 3.0
    """For one scrape, from connecting to the last byte."""
    max_body_bytes: Bytes = 16 * MEBIBYTE
    """The longest page; longer ones count as failed."""


@dataclass(slots=True)
class StoreSettings:
    """Limits of the store."""

    memory_limit: str = "512MB"
    """DuckDB's memory limit per open run."""
    max_open_runs: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Run files kept open; each takes about 6 MiB and its share of `max_open_bytes`."""
    max_open_bytes: Bytes = 2048 * MEBIBYTE
    """Memory of all open databases together; above it, the least recently used are closed."""
    max_pending_bytes: Bytes = 128 * MEBIBYTE
    """Bytes queued for commit; above it, senders are throttled."""
    min_free_bytes: Annotated[int, Meta(ge=0)] = 64 * MEBIBYTE
    """Writing stops when the disk has less free space than this."""


@dataclass(slots=True)
class DiagnosisSettings:
    """How live runs are diagnosed."""

    enabled: bool = True
    """Whether live runs are diagnosed."""
    interval_s: Interval = 5.0
    """Between two evaluations; up to twice as long if they take more than 2% of a core."""
    stacks: bool = True
    """Whether processes are asked for stacks of their threads and tasks: when work is stuck, and on demand."""
    rules: dict[str, Any] = field(default_factory=dict)
    """Parameters by rule, such as `straggler.ratio`; `enabled: false` turns a rule off."""


@dataclass(slots=True)
class AlertSettings:
    """Notifications when findings open and are resolved."""

    webhook: str | None = None
    """A URL that receives the finding as JSON."""
    slack: str | None = field(default=None, repr=False)
    """A Slack-compatible incoming webhook that receives a line of text."""
    command: str | None = None
    """A shell command that receives the finding as JSON on stdin."""
    severity: Severity = "warning"
    """The lowest severity to send."""
    rules: list[str] = field(default_factory=list)
    """Only findings of these rules; empty means all."""
    link: str | None = None
    """The base URL of links to the page; null means the server's address, or this machine's name if it listens on all
    addresses."""


@dataclass(slots=True)
class ServerSettings:
    """All settings of the server."""

    host: str = "127.0.0.1"
    """The address to listen on; any other than loopback requires a token, which is generated if not set."""
    port: Port = 18080
    """For the page, the API and ingest; 0 means any free port."""
    otlp_http_port: Port | None = OTLP_HTTP_PORT
    """For OTLP over HTTP; null turns it off (the main port still accepts OTLP), 0 means any free port."""
    otlp_grpc_port: Port | None = OTLP_GRPC_PORT
    """For OTLP over gRPC; null turns it off, 0 means any free port."""
    data_dir: str | None = None
    """The directory for runs, state and log; null means RL_INSIGHT_DATA_DIR, or ~/.rl-insight."""
    page_dir: str | None = None
    """A directory with a build of the page, for development; null means the one in the package."""
    token: str | None = field(default=None, repr=False)
    """Required of every request; without it, loopback needs no token."""
    tls_cert: str | None = None
    """The path of a certificate (chain) in PEM; with it, all ports use TLS."""
    tls_key: str | None = None
    """The path of the certificate's private key."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Additional host names accepted by a loopback server, as behind a proxy."""
    namespace: str = DEFAULT_NAMESPACE
    """The prefix of every metric name on /metrics."""
    max_rank_processes: Annotated[int, Meta(ge=0)] = 1_000
    """With more live processes, /metrics aggregates series by role; `/metrics?ranks=all` shows each rank."""
    max_body_bytes: Bytes = 32 * MEBIBYTE
    """The longest request body, as received."""
    max_decompressed_bytes: Bytes = 128 * MEBIBYTE
    """The longest request body after decompression."""
    max_decompression_ratio: Annotated[float, Meta(ge=1)] = 100.0
    """The highest compression ratio of a request that decompresses to more than 16 MiB."""
    max_request_items: Annotated[int, Meta(ge=1)] = 250_000
    """The spans, points, records, attributes and other repeated elements of an OTLP request, in total."""
    max_inflight_bytes: Bytes = 256 * MEBIBYTE
    """All requests in flight, from the first byte of a body to its response; a gRPC message may have 1/64 of it."""
    header_timeout_s: Interval = 20.0
    """The time for the request line and headers to arrive."""
    body_timeout_s: Interval = 60.0
    """The time for the body to arrive, plus a second per 64 KiB."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    sql: SqlSettings = field(default_factory=SqlSettings)
    scrape: ScrapeSettings = field(default_factory=ScrapeSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    diagnosis: DiagnosisSettings = field(default_factory=DiagnosisSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    sinks: dict[str, Any] = field(default_factory=dict, repr=False)
    """Other systems to export to: the options of each sink, by name."""
    stack: StackSettings = field(default_factory=StackSettings)

    @property
    def directory(self) -> Path:
        """The directory for runs, state and log."""
        return Path(self.data_dir).expanduser() if self.data_dir else default_data_dir()

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the server."""
        return is_loopback(self.host)


def load_settings(
    path: str | Path | None = None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> ServerSettings:
    """Return the settings: defaults < the YAML file < `key=value` words < options that are not None.

    The file may have the keys of rl-insight 0.3.0; see `older_settings`.

    Raises:
        ConfigError: names the key and the problem, and suggests the nearest key for an unknown one.

    >>> load_settings(words=["port=19000", "retention.max_age_days=7"]).retention.max_age_days
    7.0
    """
    layers: list[tuple[str, Mapping[Any, Any]]] = []
    if path is not None:
        layers.append((str(path), translated(read_yaml(str(path)), str(path))))
    if words:
        layers.append(("the command line", _parse_words(words)))
    layers.append(("the options", {key: value for key, value in (options or {}).items() if value is not None}))
    settings = load_layers(ServerSettings, layers)
    _check(settings)
    return settings


def _parse_words(words: Sequence[str]) -> Mapping[Any, Any]:
    from omegaconf import OmegaConf

    for word in words:
        if "=" not in word:
            raise ConfigError(f"{word!r} is not a setting: write it as key=value, such as port=19000.")
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist(list(words)), resolve=False)
    except Exception as error:  # OmegaConf's, or a YAML error in a value, of several types
        raise ConfigError(f"cannot parse the settings on the command line: {_first_line(error)}.") from error
    assert isinstance(parsed, dict)  # noqa: S101 - tells the type checker what a dotlist becomes
    return parsed


def _check(settings: ServerSettings) -> None:
    check_namespace("namespace", settings.namespace)
    if not settings.host:
        raise ConfigError("host cannot be empty: write 127.0.0.1, or 0.0.0.0 for every address.")
    settings.token = clean_token(settings.token, "token")
    if settings.token is not None and not _TOKEN.fullmatch(settings.token):
        raise ConfigError("token must have 16 or more letters, digits, '-' and '_'.")
    if settings.page_dir is not None and not Path(settings.page_dir).expanduser().is_dir():
        raise ConfigError(f"page_dir cannot be {settings.page_dir!r}: there is no such directory.")
    _check_tls(settings)
    make_sinks(settings.sinks)  # raises for invalid ones
    _check_diagnosis(settings)


def _check_diagnosis(settings: ServerSettings) -> None:
    from rl_insight.diagnosis.settings import check_rule, make_settings

    make_settings(settings.diagnosis.rules)
    for name in settings.alerts.rules:
        check_rule(name)
    for key in ("webhook", "slack"):
        url = getattr(settings.alerts, key)
        if url is not None and split_http_url(url) is None:
            raise ConfigError(
                f"alerts.{key} cannot be {without_credentials(url)!r}: it must be an http or https URL with a host."
            )


def _check_tls(settings: ServerSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("tls_cert and tls_key belong together: set both, or neither.")
    for key in ("tls_cert", "tls_key"):
        path = getattr(settings, key)
        if path is not None and not Path(path).expanduser().is_file():
            raise ConfigError(f"{key} cannot be {path!r}: there is no such file.")
    if settings.tls_cert is None or settings.tls_key is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
    except OSError as error:  # ssl's own errors are of this type too
        raise ConfigError(f"tls_cert and tls_key cannot be used: {_first_line(error)}.") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
