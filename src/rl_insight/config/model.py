"""The configuration as plain dataclasses: one class per section, one attribute per key, limits as part of its type.

`docs/configuration.md` describes every key for users.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rl_insight.schema.names import DEFAULT_NAMESPACE

MEBIBYTE = 1024 * 1024
MAX_RANK = 2**31 - 1

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
Duration = Annotated[float, Meta(ge=0.001, le=3600)]
"""Seconds that are never zero and never endless."""

_MODEL_WORDS = (
    "first|last|next|previous|per|each|eos|bos|pad|unk|sep|cls|mask|stop|start|end|special"
    "|image|audio|video|text|prompt|response|input|output|new|best|top|max|min"
)

SECRET_KEYS = (
    # "api_key", "X-Api-Key", "apiKey", "AWS_SECRET_ACCESS_KEY", "private_key"; not "key" or "key_count"
    r"(?:api|access|secret|private|signing|encryption|ssh|account)[-_. ]?keys?(?:$|[^a-z])",
    # "token", "access_token", "HF_TOKEN"; not the tokens of a model ("tokens", "token_count", "eos_token")
    # and not what is measured by token ("time_to_first_token", "seconds_per_token")
    rf"^(?!(?:.*[^a-z])?(?:{_MODEL_WORDS})[-_. ]?token$).*token$",
    r"passw(?:or)?d|passphrase|[^a-z]pwd$",
    r"secret",
    r"authorization",
    r"(?:^|[^a-z])(?:set)?cookies?$",
    r"credential",
)
"""Names of keys whose values are secrets, searched without regard to case."""

SECRET_VALUES = (
    r"[Bb]earer(?<=\b[Bb]earer)\s+[A-Za-z0-9._~+/=-]{8,}",
    r"sk-(?<=\bsk-)[A-Za-z0-9_-]{16,}",
    r"hf_(?<=\bhf_)[A-Za-z0-9]{16,}",
    r"gh[opsur]_(?<=\bgh[opsur]_)[A-Za-z0-9_]{16,}",
    r"github_pat_(?<=\bgithub_pat_)[A-Za-z0-9_]{16,}",
    r"AKIA(?<=\bAKIA)[0-9A-Z]{16}\b",
    r"ASIA(?<=\bASIA)[0-9A-Z]{16}\b",
    r"xox[abeprs]-(?<=\bxox[abeprs]-)[A-Za-z0-9-]{8,}",
    # JSON Web Tokens: two parts that start with the Base64 of '{"', and a signature
    r"eyJ(?<=\beyJ)[A-Za-z0-9_-]{8,2048}\.eyJ[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*",
    # the user and password of a URL
    r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)",
    # the whole key, also one that was cut short
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
"""Pieces of text that are secrets wherever they appear. A pattern begins with plain text, and the word boundary comes
after it, because only such patterns are searched for quickly."""


@dataclass(slots=True)
class ServerConfig:
    """Where a run's events go."""

    namespace: str = DEFAULT_NAMESPACE
    """In front of every metric name that Prometheus sees; may be empty."""
    backend: str = "auto"
    """The transport: `auto` is Ray where it is initialized, else HTTP."""
    url: str | None = None
    """The server; without one, a server running on this machine is used."""
    token: str | None = field(default=None, repr=False)
    """What a server on another address than loopback asks for."""


@dataclass(slots=True)
class PrometheusConfig:
    """The endpoint on which a collector shows its metrics to Prometheus."""

    metrics_report_port: Port = 9092
    """The first port to try; 0 takes any free one."""
    metrics_report_host: str = "127.0.0.1"
    """The address to listen on."""


@dataclass(slots=True)
class RecorderConfig:
    """What a process keeps, and for how long."""

    flush_interval_s: Duration = 0.5
    """Between two batches."""
    max_flush_interval_s: Duration = 10.0
    """The longest time between two batches that a busy server may ask for."""
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=3600)] = 5.0
    """A process that records nothing still sends a batch this often."""
    finish_timeout_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """The longest that `finish()` waits for delivery."""
    max_metrics: Positive = 100_000
    """Metric calls that wait for the next flush."""
    max_spans: Positive = 100_000
    """Spans that wait for the next flush."""
    max_records: Positive = 100_000
    """Events and log lines that wait for the next flush."""
    drop: Literal["newest", "oldest"] = "newest"
    """What a full buffer drops: `newest` or `oldest`."""
    max_series_per_metric: Positive = 2000
    """Label sets of one metric; further ones collapse into `__overflow__`."""
    max_attribute_bytes: Positive = 65536
    """The size at which one attribute's text is cut."""
    max_attributes_bytes: Annotated[int, Meta(ge=1024)] = 262_144
    """The size at which all attributes of one span, event or log line together are cut, the longest first."""
    max_attributes: Positive = 128
    """Attributes of one span, event or log line; further ones are dropped."""
    capture_text: bool = False
    """Whether prompts, responses, and the arguments and results of tools are recorded."""
    transcripts_per_step: Annotated[int, Meta(ge=0)] = 8
    """With `capture_text`: of how many sessions of a step each process records texts; of as many again that failed,
    or had the lowest or highest reward so far."""
    max_transcript_characters: Positive = 262_144
    """With `capture_text`: texts of one session beyond this are recorded as their lengths."""


@dataclass(slots=True)
class RedactionConfig:
    """What must never leave the process."""

    enabled: bool = True
    """Whether anything is redacted at all."""
    action: Literal["mask", "hash", "drop"] = "mask"
    """What happens to a secret: `mask`, `hash` or `drop`."""
    key_patterns: list[str] = field(default_factory=lambda: list(SECRET_KEYS))
    """Regular expressions for the names of secrets; case does not matter."""
    value_patterns: list[str] = field(default_factory=lambda: list(SECRET_VALUES))
    """Regular expressions for secrets inside text."""
    function: str | None = None
    """The user's own callable `(key, value) -> value`, as `package.module:callable`."""


@dataclass(slots=True)
class HttpConfig:
    """The HTTP transport."""

    timeout_s: Duration = 10.0
    """For one request."""
    compression: Literal["auto", "none", "gzip", "zstd"] = "auto"
    """`auto` (large batches, with the best method at hand), `none`, `gzip` or `zstd`."""
    spool_dir: str | None = None
    """Where batches wait while the server is away; by default a folder of the user's in the temporary directory."""
    spool_max_bytes: Annotated[int, Meta(ge=0)] = 256 * MEBIBYTE
    """Past this the oldest waiting batches are dropped, and counted."""
    retry_initial_s: Duration = 0.2
    """The first pause after a failed delivery; it doubles from there."""
    retry_max_s: Duration = 10.0
    """The longest pause between two attempts."""


@dataclass(slots=True)
class FileConfig:
    """The file transport."""

    directory: str = "rl-insight-events"
    """Where the files go."""
    rotate_bytes: Positive = 64 * MEBIBYTE
    """The size at which a new file is begun."""


@dataclass(slots=True)
class RayConfig:
    """The Ray transport."""

    hub: Literal["job", "node"] = "job"
    """One hub for the `job`, or one on each `node`."""


@dataclass(slots=True)
class OtlpConfig:
    """OpenTelemetry export."""

    traces_endpoint: str | None = None
    """Where spans are sent as OTLP over HTTP, besides the server."""


@dataclass(slots=True)
class InsightConfig:
    """The whole configuration."""

    OLDER_KEYS: ClassVar[dict[str, str]] = {
        "server.service_ip": "write the server's address as 'server.url', such as http://10.0.0.1:18080.",
        **dict.fromkeys(
            ("prometheus.prometheus_port", "prometheus.config_file", "otel", "otel.otel_port"),
            "remove it: 'server.url' is enough, the server knows its ports.",
        ),
    }
    """Keys of rl-insight before 0.2.0, and what to write instead."""

    enabled: bool = True
    """False makes every call a no-op."""
    announce: bool = True
    """Whether `init()` prints the run's link to standard error."""
    server: ServerConfig = field(default_factory=ServerConfig)
    prometheus: PrometheusConfig = field(default_factory=PrometheusConfig)
    recorder: RecorderConfig = field(default_factory=RecorderConfig)
    redaction: RedactionConfig = field(default_factory=RedactionConfig)
    http: HttpConfig = field(default_factory=HttpConfig)
    file: FileConfig = field(default_factory=FileConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    otlp: OtlpConfig = field(default_factory=OtlpConfig)
    labels: dict[str, str] = field(default_factory=dict)
    """Attached to everything the process records."""
    run_config: dict[str, Any] = field(default_factory=dict)
    """The configuration of the run, such as hyperparameters: recorded as by `record_config`."""
    project: str | None = None
    """The project the run belongs to."""
    experiment_name: str | None = None
    """The experiment the run belongs to."""
    run_id: str | None = None
    """The run; the same in all its processes. One is made when it is absent."""
    role: str | None = None
    """What the process does: `actor`, `rollout`, `trainer`, ..."""
    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)] | None = None
    """The process's number within its role."""
