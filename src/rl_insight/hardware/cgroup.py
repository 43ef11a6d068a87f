"""The limits of this process's control group, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 1 << 60
"""Version 1 reports a number near 2⁶³ if there is no limit."""


def read_cgroup(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> dict[str, float]:
    """Return the known `cgroup_*` quantities; unset limits are left out."""
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:
        return {}
    entries = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    groups = {controller: path for _, controllers, path in entries for controller in controllers.split(",")}
    if (root / "cgroup.controllers").exists():
        memory = cpu = list(_ancestry(root, groups.get("", "/")))
        used, limit, read_cores = "memory.current", "memory.max", _cores
    else:
        memory = list(_ancestry(root / "memory", groups.get("memory", "/")))
        cpu = list(_ancestry(root / "cpu", groups.get("cpu", "/")))
        used, limit, read_cores = "memory.usage_in_bytes", "memory.limit_in_bytes", _quota
    limits = [value for folder in memory if (value := _number(folder / limit)) is not None and value < _UNLIMITED]
    cores = [value for folder in cpu if (value := read_cores(folder)) is not None]
    values = {
        "cgroup_memory_used_bytes": _number(memory[0] / used),
        "cgroup_memory_limit_bytes": min(limits, default=None),
        "cgroup_cpu_limit_cores": min(cores, default=None),
    }
    return {name: value for name, value in values.items() if value is not None}


def _ancestry(root: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and its parents; inside a container the path may be the host's and not exist."""
    folder = root / path.strip("/")
    if ".." in folder.parts or not folder.is_dir():
        folder = root
    while folder != root:
        yield folder
        folder = folder.parent
    yield root


def _number(path: Path) -> float | None:
    try:
        return float(path.read_text("utf-8"))
    except (OSError, ValueError):  # "max" is not a number
        return None


def _cores(folder: Path) -> float | None:
    try:
        quota, period = (folder / "cpu.max").read_text("utf-8").split()
        return float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None
