"""XTuner's trace configuration, for both of its APIs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

TRACE_VIEWER_SCOPE_LATEST_PRODUCE_BATCH = "latest-produce-batch"
TRACE_VIEWER_SCOPE_ALL = "all"

_COMMON_KEYS = frozenset({"enabled", "output_dir"})
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
    """What to trace, where to write it, and whether to open a viewer.

    The keys are those of the producer trace and of the OpenTelemetry trace combined.

    >>> TraceConfig(enabled=True, output_dir="traces").viewer_scope
    'latest-produce-batch'

    Raises:
        ValueError: a key is unknown, or a value is out of range.
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
        """Whether producer events are written; not if the only keys set are those of the OpenTelemetry trace."""
        return bool(self._own_keys - _OTEL_KEYS) or not self._own_keys

    @property
    def has_otel_trace(self) -> bool:
        """Whether spans are written; not if the only keys set are those of the producer trace."""
        return bool(self._own_keys & _OTEL_KEYS) or not self._own_keys

    @property
    def _own_keys(self) -> set[str]:
        return self.model_fields_set - _COMMON_KEYS

    @property
    def viewer(self) -> tuple[str, int] | None:
        """The viewer's host and port; None without a viewer."""
        if self.xtuner_viewer_enabled:
            return self.xtuner_viewer_host, self.xtuner_viewer_port
        if self.viewer_enabled and self.has_producer_trace:
            return self.viewer_host, self.viewer_port
        return None


def read_config(config: Any) -> TraceConfig:
    """Return a configuration from a `TraceConfig`, another model with its keys, a mapping, or None.

    Raises:
        TypeError: any other type.
        ValueError: a key is unknown, or a value is out of range.
    """
    if isinstance(config, TraceConfig):
        return config
    if config is None:
        return TraceConfig()
    if isinstance(config, BaseModel):
        return TraceConfig(**config.model_dump(exclude_unset=True))
    if not isinstance(config, Mapping):
        raise TypeError(f"the trace configuration is a {type(config).__name__}: use a TraceConfig or a mapping.")
    return TraceConfig(**config)
