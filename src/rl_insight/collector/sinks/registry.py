"""Finds sinks by name: our own, and those of other packages."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from rl_insight.collector.base import Sink
from rl_insight.errors import ConfigError

GROUP = "rl_insight.sinks"
"""The entry-point group: a name for the configuration, and a callable that returns a `Sink`."""

_BUILT_IN = {
    "jsonl": ("jsonl", "JsonlSink"),
    "memory": ("memory", "MemorySink"),
    "otlp": ("otlp", "OtlpTraceSink"),
    "otlp_logs": ("otlp", "OtlpLogSink"),
    "otlp_metrics": ("otlp", "OtlpMetricSink"),
    "remote_write": ("remote_write", "RemoteWriteSink"),
}
"""By name: the module and what makes the sink."""


def create_sink(name: str, options: Mapping[str, Any]) -> Sink:
    """Return the sink called `name`, made with these options as keyword arguments.

    >>> create_sink("memory", {"max_batches": 10}).name
    'memory'
    """
    factory = _built_in(name)
    if factory is None:
        others = {point.name: point for point in entry_points(group=GROUP)}
        if name not in others:
            known = ", ".join(sorted({*_BUILT_IN, *others}))
            raise ConfigError(f"unknown sink {name!r}: known are {known}. Install the package that provides it.")
        factory = others[name].load()
    try:
        sink = factory(**options)
    except TypeError as error:
        raise ConfigError(f"sink {name!r} cannot be made: {error}. Check its options.") from error
    if not isinstance(sink, Sink):
        raise ConfigError(f"sink {name!r} is a {type(sink).__name__}: it must be a rl_insight.collector.base.Sink.")
    return sink


def _built_in(name: str) -> Any:
    # Imported here: a collector loads only the sinks it has.
    if name not in _BUILT_IN:
        return None
    module, factory = _BUILT_IN[name]
    return getattr(import_module(f"rl_insight.collector.sinks.{module}"), factory)
