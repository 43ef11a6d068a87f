"""AReaL's configuration of its tracer, read from whatever carries it."""

from __future__ import annotations

import getpass
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class AReaLConfig:
    """What `configure` needs to know."""

    enabled: bool = False
    experiment_name: str = ""
    trial_name: str = ""
    fileroot: str = "."
    save_interval: int = 1
    profile_steps: tuple[int, ...] = ()
    sessions_enabled: bool = False
    flush_threshold: int = 256

    def directory(self, kind: str, role: str | None) -> Path:
        """Return where files of one kind go."""
        base = Path(self.fileroot).expanduser() / "logs" / _user() / self.experiment_name / self.trial_name / kind
        return base / role if role else base


def read_config(config: Any) -> AReaLConfig:
    """Read a mapping, a dataclass, an OmegaConf node or any object with these attributes.

    Raises:
        TypeError: a value has a type that cannot be used.
        ValueError: a value is out of its range.
    """
    session_tracer = _value(config, "session_tracer", None)
    read = AReaLConfig(
        enabled=bool(_value(config, "enabled", False)),
        experiment_name=str(_value(config, "experiment_name", "") or ""),
        trial_name=str(_value(config, "trial_name", "") or ""),
        fileroot=str(_value(config, "fileroot", ".") or "."),
        save_interval=_whole("save_interval", _value(config, "save_interval", 1)),
        profile_steps=tuple(_whole("profile_steps", step, 0) for step in _value(config, "profile_steps", None) or ()),
        sessions_enabled=session_tracer is not None and bool(_value(session_tracer, "enabled", False)),
        flush_threshold=_whole("session_tracer.flush_threshold", _value(session_tracer, "flush_threshold", 256)),
    )
    for name, part in (("experiment_name", read.experiment_name), ("trial_name", read.trial_name)):
        if part in (".", "..") or "/" in part or "\\" in part:
            raise ValueError(f"{name} {part!r} cannot name a directory: leave out slashes.")
    return read


def _value(config: Any, name: str, default: Any) -> Any:
    if config is None:
        return default
    value = config.get(name, default) if isinstance(config, Mapping) else getattr(config, name, default)
    return default if value is None else value


def _whole(name: str, value: Any, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {type(value).__name__}, not an integer.")
    if value < least:
        raise ValueError(f"{name} is {value}: it must be at least {least}.")
    return value


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        return "unknown"
