"""The configuration as plain dataclasses: one class per section, one attribute per key, limits as part of its type.

`docs/configuration.md` describes every key for users.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from rl_insight.schema.names import DEFAULT_NAMESPACE, MAX_RUN_ID

MEBIBYTE = 1024 * 1024
MAX_RANK = 2**31 - 1

Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
Duration = Annotated[float, Meta(ge=0.001, le=3600)]
"""Seconds, positive and bounded."""

_MODEL_WORDS = (
    "first|last|next|previous|per|each|eos|bos|pad|unk|sep|cls|mask|stop|start|end|special"
    "|image|audio|video|text|prompt|response|input|output|new|best|top|max|min"
)

SECRET_KEYS = (
    # "api_key", "X-Api-Key", "apiKey", "AWS_SECRET_ACCESS_KEY", "private_key"; not "key" or "key_count"
    r"(?:api|access|secret|private|signing|encryption|ssh|account)[-_. ]?keys?(?:$|[^a-z])",
    # "token", "access_token", "HF_TOKEN"; not the tokens of a model ("tokens", "token_count", "eos_token")
    # and not quantities per token ("time_to_first_token", "seconds_per_token")
    rf"^(?!(?:.*[^a-z])?(?:{_MODEL_WORDS})[-_. ]?token$).*token$",
    r"passw(?:or)?d|passphrase|[^a-z]pwd$",
    r"secret",
    r"authorization",
    r"(?:^|[^a-z])(?:set)?cookies?$",
    r"credential",
)
"""Patterns of key names whose values are secrets; case-insensitive."""

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
    # the entire key, even if truncated
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)
"""Patterns of secrets in text. Each begins with a literal followed by the word boundary, because only such patterns are
fast to search for."""


@dataclass(slots=True)
class ServerConfig:
    """Where a run's events go."""

    namespace: str = DEFAULT_NAMESPACE
    """The prefix of every metric name that Prometheus sees; may be empty."""
    backend: str = "auto"
    """The transport: `auto` is Ray if it is initialized, otherwise HTTP."""
    url: str | None = None
    """The URL of the server; without it, the server on this machine is used."""
    token: str | None = field(default=None, repr=False)
    """The access token; required by servers that do not listen on loopback."""


@dataclass(slots=True)
class PrometheusConfig:
    """The endpoint on which a collector exposes its metrics to Prometheus."""

    metrics_report_port: Port = 9092
    """The first port to try; 0 means any free port."""
    metrics_report_host: str = "127.0.0.1"
    """The address to listen on."""


@dataclass(slots=True)
class RecorderConfig:
    """Buffers, limits and intervals of a recording process."""

    flush_interval_s: Duration = 0.5
    """The interval between batches."""
    max_flush_interval_s: Duration = 10.0
    """The longest interval between batches that a busy server may request."""
    heartbeat_s: Annotated[float, Meta(ge=0.01, le=3600)] = 5.0
    """How often an idle process sends a batch."""
    finish_timeout_s: Annotated[float, Meta(ge=0, le=3600)] = 5.0
    """The longest that `finish()` waits for delivery."""
    max_metrics: Positive = 100_000
    """Metric calls buffered between flushes."""
    max_spans: Positive = 100_000
    """Spans buffered between flushes."""
    max_records: Positive = 100_000
    """Events and log lines buffered between flushes."""
    drop: Literal["newest", "oldest"] = "newest"
    """What a full buffer drops: `newest` or `oldest`."""
    max_series_per_metric: Positive = 2000
    """Label sets of one metric; further ones are merged into `__overflow__`."""
    max_attribute_bytes: Positive = 65536
    """The size at which the text of one attribute is truncated."""
    max_attributes_bytes: Annotated[int, Meta(ge=1024)] = 262_144
    """The size at which the attributes of one span, event or log line are truncated, longest first."""
    max_attributes: Positive = 128
    """Attributes of one span, event or log line; further ones are dropped."""
    capture_text: bool = False
    """Whether prompts, responses, and the arguments and results of tools are recorded."""
    transcripts_per_step: Annotated[int, Meta(ge=0)] = 8
    """With `capture_text`: the number of sessions per step whose text each process records, plus as many that failed
    or had the lowest or highest reward so far."""
    max_transcript_characters: Positive = 262_144
    """With `capture_text`: the limit per session; beyond it, only the length of the text is recorded."""


@dataclass(slots=True)
class RedactionConfig:
    """Values that must never leave the process."""

    enabled: bool = True
    """Whether anything is redacted."""
    action: Literal["mask", "hash", "drop"] = "mask"
    """What happens to a secret: `mask`, `hash` or `drop`."""
    key_patterns: list[str] = field(default_factory=lambda: list(SECRET_KEYS))
    """Regular expressions for key names of secrets, case-insensitive."""
    value_patterns: list[str] = field(default_factory=lambda: list(SECRET_VALUES))
    """Regular expressions for secrets in text."""
    function: str | None = None
    """A user-defined callable `(key, value) -> value`, as `package.module:callable`."""


@dataclass(slots=True)
class HttpConfig:
    """The HTTP transport."""

    timeout_s: Duration = 10.0
    """The timeout of one request."""
    compression: Literal["auto", "none", "gzip", "zstd"] = "auto"
    """`auto` (compresses large batches with the best available method), `none`, `gzip` or `zstd`."""
    spool_dir: str | None = None
    """Where undelivered batches are kept; by default a private folder in the temporary directory."""
    spool_max_bytes: Annotated[int, Meta(ge=0)] = 256 * MEBIBYTE
    """Above this size the oldest batches are dropped and counted."""
    retry_initial_s: Duration = 0.2
    """The pause after the first failed delivery; it doubles after each further failure."""
    retry_max_s: Duration = 10.0
    """The longest pause between retries."""


@dataclass(slots=True)
class FileConfig:
    """The file transport."""

    directory: str = "rl-insight-events"
    """The directory of the files."""
    rotate_bytes: Positive = 64 * MEBIBYTE
    """The size at which a new file is started."""


@dataclass(slots=True)
class RayConfig:
    """The Ray transport."""

    hub: Literal["job", "node"] = "job"
    """One hub per `job`, or one per `node`."""


@dataclass(slots=True)
class OtlpConfig:
    """OpenTelemetry export."""

    traces_endpoint: str | None = None
    """An endpoint that also receives the spans, as OTLP over HTTP."""


@dataclass(slots=True)
class InsightConfig:
    """The full configuration."""

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
    run_id: Annotated[str, Meta(max_length=MAX_RUN_ID)] | None = None
    """The run ID, the same in all processes of the run; generated if absent."""
    role: str | None = None
    """The role of the process: `actor`, `rollout`, `trainer`, ..."""
    rank: Annotated[int, Meta(ge=0, le=MAX_RANK)] | None = None
    """The rank of the process within its role."""
