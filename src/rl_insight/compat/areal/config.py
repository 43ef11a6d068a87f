"""AReaL's tracer configuration."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

logger = logging.getLogger("rl_insight")

RANKS_VARIABLE = "AREAL_PERF_TRACER_RANKS"
"""Which ranks trace: `all`, `0`, `0,2` or `0-3`."""


@dataclass(frozen=True, slots=True)
class AReaLConfig:
    """The settings of `configure`."""

    enabled: bool = False
    experiment_name: str = ""
    trial_name: str = ""
    fileroot: str = "."
    save_interval: int = 1
    profile_steps: frozenset[int] = frozenset()
    sessions_enabled: bool = False
    flush_threshold: int = 256

    def directory(self, kind: str, role: str | None) -> Path:
        """Return the folder of one kind of file."""
        base = Path(self.fileroot).expanduser() / "logs" / _user() / self.experiment_name / self.trial_name / kind
        return base / role if role else base


def read_config(config: Any) -> AReaLConfig:
    """Read a mapping, a dataclass, an OmegaConf node or any object with these attributes."""
    session_tracer = _value(config, "session_tracer", None)
    return AReaLConfig(
        enabled=bool(_value(config, "enabled", False)),
        experiment_name=str(_value(config, "experiment_name", "")),
        trial_name=str(_value(config, "trial_name", "")),
        fileroot=str(_value(config, "fileroot", "") or "."),
        save_interval=max(1, int(_value(config, "save_interval", 1))),
        profile_steps=frozenset(int(step) for step in _value(config, "profile_steps", ())),
        sessions_enabled=bool(_value(session_tracer, "enabled", False)),
        flush_threshold=max(1, int(_value(session_tracer, "flush_threshold", 256))),
    )


def is_rank_chosen(rank: int, choice: str | None) -> bool:
    """Return whether `AREAL_PERF_TRACER_RANKS` selects a rank; unset, it selects all.

    >>> is_rank_chosen(2, "0-3"), is_rank_chosen(1, "0,2"), is_rank_chosen(1, "")
    (True, False, True)
    """
    parts = [part.strip() for part in (choice or "all").split(",") if part.strip()]
    if not parts or "all" in (part.lower() for part in parts):
        return True
    try:
        for part in parts:
            first, _, last = part.partition("-")
            if int(first) <= rank <= int(last or first):
                return True
    except ValueError:
        logger.warning("%s is %r: use all, 0, 0,2 or 0-3. Tracing every rank.", RANKS_VARIABLE, choice)
        return True
    return False


def _value(config: Any, name: str, default: Any) -> Any:
    value = config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
    return default if value is None else value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "unknown"
