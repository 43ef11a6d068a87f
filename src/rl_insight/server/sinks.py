"""Where the server hands on what it stored: the settings of its sinks, and the sinks they switch on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_insight.collector import Sink
from rl_insight.errors import ConfigError

RETRY_FOR_S = 300.0
"""How long a request is retried; what arrives meanwhile waits in the sink's bounded queue."""


@dataclass(slots=True)
class RemoteWriteSettings:
    """Metrics to Prometheus and its like."""

    url: str | None = None
    """The endpoint, such as http://host:9090/api/v1/write; null turns it off."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request, for instance a token or a tenant."""


@dataclass(slots=True)
class OtlpSinkSettings:
    """Spans, metrics and logs to an OpenTelemetry receiver."""

    endpoint: str | None = None
    """The receiver: http://host:4318 for `http`, host:4317 for `grpc`; null turns it off."""
    protocol: str = "http"
    """`http` or `grpc`."""
    signals: list[str] = field(default_factory=lambda: ["traces", "metrics", "logs"])
    """What is sent."""
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    """Sent with each request, for instance a token."""


@dataclass(slots=True)
class JsonlSettings:
    """Everything as lines of JSON."""

    path: str | None = None
    """The file; null turns it off."""


@dataclass(slots=True)
class SinkSettings:
    """Other systems that get what the server stored."""

    remote_write: RemoteWriteSettings = field(default_factory=RemoteWriteSettings)
    otlp: OtlpSinkSettings = field(default_factory=OtlpSinkSettings)
    jsonl: JsonlSettings = field(default_factory=JsonlSettings)


def make_sinks(settings: SinkSettings) -> list[Sink]:
    """Return the sinks that are switched on; none of them connects before it has something to send.

    Raises:
        ConfigError: names the section that cannot be used, and why.

    >>> [sink.name for sink in make_sinks(SinkSettings(jsonl=JsonlSettings(path="events.jsonl")))]
    ['jsonl']
    """
    sinks: list[Sink] = []
    options: dict[str, Any]
    # Each is imported only where it is wanted: a server starts no slower for what it does not use.
    if settings.remote_write.url is not None:
        from rl_insight.collector.sinks.remote_write import RemoteWriteSink

        options = {"headers": settings.remote_write.headers}
        with _named("sinks.remote_write"):
            sinks.append(RemoteWriteSink(settings.remote_write.url, retry_for_s=RETRY_FOR_S, **options))
    if settings.otlp.endpoint is not None:
        from rl_insight.collector.sinks.otlp import otlp_sinks

        options = {"headers": settings.otlp.headers, "signals": settings.otlp.signals}
        with _named("sinks.otlp"):
            protocol = settings.otlp.protocol
            sinks += otlp_sinks(settings.otlp.endpoint, protocol=protocol, retry_for_s=RETRY_FOR_S, **options)
    if settings.jsonl.path is not None:
        from rl_insight.collector.sinks.jsonl import JsonlSink

        sinks.append(JsonlSink(Path(settings.jsonl.path).expanduser()))
    return sinks


@contextmanager
def _named(section: str) -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{section} cannot be used: {error}") from error
