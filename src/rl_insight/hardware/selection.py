"""Chooses the hardware sources."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from rl_insight.hardware.base import Source
from rl_insight.hardware.host import HostSource
from rl_insight.hardware.nvml import NvmlSource
from rl_insight.hardware.ray import RaySource

logger = logging.getLogger("rl_insight")

_NAMED: dict[str, type[Source]] = {"ray": RaySource, "nvml": NvmlSource, "host": HostSource}
_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")


def choose_sources(wanted: str | Sequence[Source | str]) -> list[Source]:
    """Return the requested sources, or for `auto` those that suit this process.

    Raises:
        ValueError: a name is unknown.
    """
    if wanted == "auto":
        return [source for source in _automatic() if source.is_available()]
    names = [wanted] if isinstance(wanted, str) else list(wanted)
    return [_named(name) if isinstance(name, str) else name for name in names]


def _automatic() -> list[Source]:
    ray = RaySource()
    if ray.is_available():
        return [ray, HostSource(process_only=True)]
    if _local_rank() > 0:  # local rank 0 monitors the machine
        return [HostSource(process_only=True)]
    return [NvmlSource(), HostSource()]


def _named(name: str) -> Source:
    if name not in _NAMED:
        raise ValueError(f"unknown hardware source {name!r}. Choose from: auto, {', '.join(_NAMED)}, or pass a Source.")
    return _NAMED[name]()


def _local_rank() -> int:
    for variable in _LOCAL_RANK_VARIABLES:
        if os.environ.get(variable, "").isdecimal():
            return int(os.environ[variable])
    return 0
