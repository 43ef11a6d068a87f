"""The server's settings: from a YAML file, from `key=value` words on the command line, and from options.

`docs/server.md` describes every key.
"""

from __future__ import annotations

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
from rl_insight.schema.names import DEFAULT_NAMESPACE
from rl_insight.server.older_settings import translated
from rl_insight.stack import StackSettings
from rl_insight.urls import clean_token, is_loopback

OTLP_HTTP_PORT = 4318
OTLP_GRPC_PORT = 4317
_SHORTEST_TOKEN = 16

Bytes = Annotated[int, Meta(ge=1024)]
Interval = Annotated[float, Meta(ge=0.1, le=86_400)]
NotNegative = Annotated[float, Meta(ge=0)]


@dataclass(slots=True)
class RetentionSettings:
    """When runs are deleted; those that are being written or read never are."""

    max_age_days: NotNegative | None = None
    """Runs that were last written longer ago are deleted; null keeps them forever."""
    max_total_gb: NotNegative | None = None
    """Past this, the oldest runs are deleted until the rest fits."""
    interval_s: Interval = 60.0
    """How often this is looked at."""


@dataclass(slots=True)
class SqlSettings:
    """Free SQL over a run."""

    enabled: bool = False
    """Whether `POST /api/v1/sql` is answered."""
    max_answer_bytes: Bytes = 16 * MEBIBYTE
    """The rows of an answer as JSON; what is beyond is left out and the answer says so."""
    memory_bytes: Annotated[int, Meta(ge=512 * MEBIBYTE)] = 1024 * MEBIBYTE
    """The address space of the process that runs a query; there is one at a time."""
    max_run_bytes: Bytes = 2048 * MEBIBYTE
    """The longest run file that is copied for a query; commits to the run wait for the copying, a second per GB."""


@dataclass(slots=True)
class ScrapeSettings:
    """How registered Prometheus targets are read."""

    interval_s: Interval = 5.0
    """Between two readings of a target."""
    timeout_s: Annotated[float, Meta(ge=0.1, le=3600)] = 3.0
    """For one target, from connecting to the last byte."""
    max_body_bytes: Bytes = 16 * MEBIBYTE
    """A longer page counts as failed."""


@dataclass(slots=True)
class StoreSettings:
    """How much the store may use."""

    memory_limit: str = "512MB"
    """For each open run."""
    max_open_runs: Annotated[int, Meta(ge=1, le=1000)] = 32
    """Runs whose files stay open; an open one takes about 6 MiB and its part of `max_open_bytes`."""
    max_open_bytes: Bytes = 2048 * MEBIBYTE
    """Memory that the databases of open runs may hold together; beyond it the longest idle are closed."""
    max_pending_bytes: Bytes = 128 * MEBIBYTE
    """What may wait to be written; past it senders are told to slow down."""
    min_free_bytes: Annotated[int, Meta(ge=0)] = 64 * MEBIBYTE
    """With less room than this on the disk, nothing more is written."""


@dataclass(slots=True)
class DiagnosisSettings:
    """How runs are diagnosed while they are recorded."""

    enabled: bool = True
    """Whether runs are diagnosed while they are recorded."""
    interval_s: Interval = 5.0
    """Between two evaluations; up to twice as long while they take more than 3% of a core."""
    stacks: bool = True
    """Whether processes are asked for the stacks of their threads and tasks: when work is stuck, and on demand."""
    rules: dict[str, Any] = field(default_factory=dict)
    """Rule to parameter to value, such as `straggler.ratio`; `enabled: false` switches a rule off."""


@dataclass(slots=True)
class AlertSettings:
    """Who is notified when a finding opens and when it is resolved."""

    webhook: str | None = None
    """A URL that gets the finding as JSON."""
    slack: str | None = field(default=None, repr=False)
    """A Slack-compatible incoming webhook that gets one line of text."""
    command: str | None = None
    """A shell command that gets the finding as JSON on its standard input."""
    severity: Literal["info", "warning", "critical"] = "warning"
    """The lowest severity that is sent."""
    rules: list[str] = field(default_factory=list)
    """Only findings of these rules; empty means all."""
    link: str | None = None
    """The address of the page in links; null means the address the server listens on."""


@dataclass(slots=True)
class ServerSettings:
    """All settings of the server."""

    host: str = "127.0.0.1"
    """The address to listen on; any but loopback needs a token, which is made when none is given."""
    port: Port = 18080
    """For the page, the API and ingest; 0 takes any free one."""
    otlp_http_port: Port | None = OTLP_HTTP_PORT
    """For OTLP over HTTP; null turns it off (the main port takes OTLP all the same), 0 takes any free one."""
    otlp_grpc_port: Port | None = OTLP_GRPC_PORT
    """For OTLP over gRPC; null turns it off, 0 takes any free one."""
    data_dir: str | None = None
    """Where runs, state and log are kept; null means RL_INSIGHT_DATA_DIR, or ~/.rl-insight."""
    page_dir: str | None = None
    """A folder with a build of the page, for those who work on it; null means the one in the package."""
    token: str | None = field(default=None, repr=False)
    """What every request must show; without one, loopback needs none."""
    tls_cert: str | None = None
    """The path of a certificate (chain) in PEM; with it all ports speak TLS."""
    tls_key: str | None = None
    """The path of the certificate's private key."""
    allowed_hosts: list[str] = field(default_factory=list)
    """Further names that requests may call a loopback server by, as behind a proxy."""
    namespace: str = DEFAULT_NAMESPACE
    """In front of every metric name on /metrics."""
    max_rank_processes: Annotated[int, Meta(ge=0)] = 1_000
    """With more live processes, /metrics shows series by role; `/metrics?ranks=all` shows those of each rank."""
    max_body_bytes: Bytes = 32 * MEBIBYTE
    """The longest request, as it comes over the wire."""
    max_decompressed_bytes: Bytes = 128 * MEBIBYTE
    """The longest request once it is decompressed."""
    max_decompression_ratio: Annotated[float, Meta(ge=1)] = 100.0
    """How many times its own length a request of more than 16 MiB may be once it is decompressed."""
    max_request_items: Annotated[int, Meta(ge=1)] = 250_000
    """The spans, points, records, attributes and other repeated elements of one OTLP request, together."""
    max_inflight_bytes: Bytes = 256 * MEBIBYTE
    """All requests in flight, from the first byte of a body to its answer; a gRPC message may have 1/64 of it."""
    header_timeout_s: Interval = 20.0
    """How long a request's line and headers may take to arrive."""
    body_timeout_s: Interval = 60.0
    """How long a request's body may take to arrive, and a second more for each 64 KiB of it."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """`debug`, `info`, `warning` or `error`."""
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    sql: SqlSettings = field(default_factory=SqlSettings)
    scrape: ScrapeSettings = field(default_factory=ScrapeSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    diagnosis: DiagnosisSettings = field(default_factory=DiagnosisSettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    sinks: dict[str, Any] = field(default_factory=dict, repr=False)
    """Other systems that get what the server stored: by name of a sink, its options."""
    stack: StackSettings = field(default_factory=StackSettings)

    @property
    def directory(self) -> Path:
        """Where runs, state and log are kept."""
        return Path(self.data_dir).expanduser() if self.data_dir else default_data_dir()

    @property
    def is_loopback(self) -> bool:
        """True when only this machine can reach the server."""
        return is_loopback(self.host)


def load_settings(
    path: str | Path | None = None, words: Sequence[str] = (), options: Mapping[str, Any] | None = None
) -> ServerSettings:
    """Return the settings: defaults < the YAML file < `key=value` words < options that are not None.

    The file may have the keys of rl-insight 0.3.0; see `older_settings`.

    Raises:
        ConfigError: names the key, what is wrong with it, and the nearest valid key for one that does not exist.

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
        raise ConfigError(f"the settings on the command line cannot be read: {_first_line(error)}.") from error
    assert isinstance(parsed, dict)  # noqa: S101 - tells the type checker what a dotlist becomes
    return parsed


def _check(settings: ServerSettings) -> None:
    check_namespace("namespace", settings.namespace)
    if not settings.host:
        raise ConfigError("host cannot be empty: write 127.0.0.1, or 0.0.0.0 for every address.")
    settings.token = clean_token(settings.token, "token")
    if settings.token is not None and (len(settings.token) < _SHORTEST_TOKEN or not _is_plain(settings.token)):
        raise ConfigError(f"token must have {_SHORTEST_TOKEN} or more letters, digits, '-' and '_'.")
    if settings.page_dir is not None and not Path(settings.page_dir).expanduser().is_dir():
        raise ConfigError(f"page_dir cannot be {settings.page_dir!r}: there is no such folder.")
    _check_tls(settings)
    make_sinks(settings.sinks)  # says what is wrong with them
    _check_diagnosis(settings)


def _check_diagnosis(settings: ServerSettings) -> None:
    from rl_insight.diagnosis.settings import check_rule, make_settings

    make_settings(settings.diagnosis.rules)
    for name in settings.alerts.rules:
        check_rule(name)
    for key in ("webhook", "slack"):
        url = getattr(settings.alerts, key)
        if url is not None and not url.startswith(("http://", "https://")):
            raise ConfigError(f"alerts.{key} cannot be {url!r}: it must be a URL with http or https.")


def _is_plain(token: str) -> bool:
    return token.isascii() and token.replace("-", "").replace("_", "").isalnum()


def _check_tls(settings: ServerSettings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise ConfigError("tls_cert and tls_key belong together: give both, or neither.")
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
