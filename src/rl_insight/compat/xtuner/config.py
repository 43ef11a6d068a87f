"""XTuner's configuration of its trace, in both spellings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

SCOPE_LATEST_PRODUCE_BATCH = "latest-produce-batch"
SCOPE_ALL = "all"

_PRODUCER_KEYS = frozenset(
    {
        "max_events",
        "max_events_per_trace",
        "viewer_enabled",
        "viewer_host",
        "viewer_port",
        "viewer_refresh_interval_s",
        "viewer_scope",
    }
)
_OTEL_KEYS = frozenset(
    {
        "service_name",
        "xtuner_viewer_enabled",
        "xtuner_viewer_host",
        "xtuner_viewer_port",
        "xtuner_viewer_jaeger_query_url",
        "enable_rollout_trace",
    }
)


class TraceConfig(BaseModel):
    """What is traced, where to, and whether a page shows it.

    The keys are those of the producer trace and of the OpenTelemetry trace together.

    >>> TraceConfig(enabled=True, output_dir="traces").viewer_scope
    'latest-produce-batch'

    Raises:
        ValueError: a key is unknown, or a value is out of its range.
    """

    model_config = ConfigDict(extra="forbid")

    enabled: bool = False
    output_dir: str | Path | None = None
    max_events: int = Field(default=100_000, ge=1)
    max_events_per_trace: int = Field(default=256, ge=1)
    viewer_enabled: bool = True
    viewer_host: str = "127.0.0.1"
    viewer_port: int = Field(default=0, ge=0, le=65535)
    viewer_refresh_interval_s: float = Field(default=1.0, gt=0)
    viewer_scope: Literal["latest-produce-batch", "all"] = "latest-produce-batch"
    service_name: str = "xtuner-rollout"
    xtuner_viewer_enabled: bool = False
    xtuner_viewer_host: str = "127.0.0.1"
    xtuner_viewer_port: int = Field(default=18080, ge=0, le=65535)
    xtuner_viewer_jaeger_query_url: str | None = None
    enable_rollout_trace: bool = False

    @property
    def has_producer_trace(self) -> bool:
        """Whether the producer's events are written; not where only keys of the OpenTelemetry trace are set."""
        return bool(self.model_fields_set & _PRODUCER_KEYS) or not self.model_fields_set & _OTEL_KEYS

    @property
    def has_otel_trace(self) -> bool:
        """Whether spans are written; not where only keys of the producer trace are set."""
        return bool(self.model_fields_set & _OTEL_KEYS) or not self.model_fields_set & _PRODUCER_KEYS

    @property
    def viewer(self) -> tuple[str, int] | None:
        """The page's host and port; None where no page is wanted."""
        if self.xtuner_viewer_enabled:
            return self.xtuner_viewer_host, self.xtuner_viewer_port
        if self.viewer_enabled and self.has_producer_trace:
            return self.viewer_host, self.viewer_port
        return None


def read_config(config: Any) -> TraceConfig:
    """Return a configuration from a `TraceConfig`, another model with its keys, a mapping, or None.

    Raises:
        TypeError: it is none of these.
        ValueError: a key is unknown, or a value is out of its range.
    """
    if isinstance(config, TraceConfig):
        return config
    if config is None:
        return TraceConfig()
    if isinstance(config, BaseModel):
        return TraceConfig(**config.model_dump(exclude_unset=True))
    if not isinstance(config, Mapping):
        raise TypeError(f"the trace configuration is a {type(config).__name__}. Give a TraceConfig or a mapping.")
    return TraceConfig(**config)
