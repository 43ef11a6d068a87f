"""XTuner's configuration of its producer trace."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

SCOPES = ("latest-produce-batch", "all")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceConfig:
    """What is traced, where to, and whether a page shows it.

    >>> TraceConfig(enabled=True, output_dir="traces").viewer_scope
    'latest-produce-batch'

    Raises:
        ValueError: a value is out of its range.
    """

    enabled: bool = False
    output_dir: str | Path | None = None
    """Where each process writes its events; none are written when it is left out."""
    max_events: int = 100_000
    """Events that may wait in memory to be written."""
    max_events_per_trace: int = 256
    """Events of one task that are written to the file; further ones are counted."""
    viewer_enabled: bool = True
    viewer_host: str = "127.0.0.1"
    viewer_port: int = 0
    """0 takes a free one."""
    viewer_refresh_interval_s: float = 1.0
    viewer_scope: str = SCOPES[0]

    def __post_init__(self) -> None:
        for name in ("max_events", "max_events_per_trace"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}: it must be an integer of at least 1.")
        port = self.viewer_port
        if not isinstance(port, int) or isinstance(port, bool) or not 0 <= port <= 65535:
            raise ValueError(f"viewer_port is {port!r}: it must be an integer from 0 to 65535.")
        if not isinstance(self.viewer_refresh_interval_s, (int, float)) or not self.viewer_refresh_interval_s > 0:
            raise ValueError(f"viewer_refresh_interval_s is {self.viewer_refresh_interval_s!r}: it must be above 0.")
        if self.viewer_scope not in SCOPES:
            raise ValueError(f"viewer_scope is {self.viewer_scope!r}: choose one of {', '.join(SCOPES)}.")


def read_config(config: Any) -> TraceConfig:
    """Read a `TraceConfig`, or a mapping with its keys.

    Raises:
        TypeError: it is neither.
        ValueError: a key is unknown, or a value out of its range.
    """
    if isinstance(config, TraceConfig):
        return config
    if config is None:
        return TraceConfig()
    if not isinstance(config, Mapping):
        raise TypeError(f"the trace configuration is a {type(config).__name__}: give a TraceConfig or a mapping.")
    known = [field.name for field in dataclasses.fields(TraceConfig)]
    for key in config:
        if key not in known:
            nearest = get_close_matches(str(key), known, n=1)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"unknown key {key!r} in the trace configuration.{hint}")
    return TraceConfig(**config)
