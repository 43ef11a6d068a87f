"""The limits of this process's control group, version 1 or 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_V1 = 1 << 60
"""Version 1 writes a number near 2⁶³ where there is no limit."""


def read_cgroup(root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> dict[str, float]:
    """Return the quantities `cgroup_*` that are known; a limit that is not set is left out."""
    try:
        lines = membership.read_text("utf-8").splitlines()
    except OSError:
        return {}
    groups = {controller: path for line in lines if line.count(":") >= 2 for controller, path in _memberships(line)}
    if (root / "cgroup.controllers").exists():
        return _read_v2(root, groups.get("", "/"))
    return _read_v1(root, groups)


def _memberships(line: str) -> Iterator[tuple[str, str]]:
    _number, controllers, path = line.split(":", 2)
    for controller in controllers.split(","):
        yield controller, path


def _read_v2(root: Path, path: str) -> dict[str, float]:
    folders = list(_ancestry(root, path))
    values: dict[str, float | None] = {
        "cgroup_memory_used_bytes": _number(folders[0] / "memory.current"),
        "cgroup_memory_limit_bytes": _smallest(_number(folder / "memory.max") for folder in folders),
        "cgroup_cpu_limit_cores": _smallest(_cores(folder / "cpu.max") for folder in folders),
    }
    return {name: value for name, value in values.items() if value is not None}


def _read_v1(root: Path, groups: dict[str, str]) -> dict[str, float]:
    memory = list(_ancestry(root / "memory", groups.get("memory", "/")))
    cpu = list(_ancestry(root / "cpu", groups.get("cpu", "/")))
    limit = _smallest(_number(folder / "memory.limit_in_bytes") for folder in memory)
    values: dict[str, float | None] = {
        "cgroup_memory_used_bytes": _number(memory[0] / "memory.usage_in_bytes"),
        "cgroup_memory_limit_bytes": limit if limit is not None and limit < _UNLIMITED_V1 else None,
        "cgroup_cpu_limit_cores": _smallest(_quota(folder) for folder in cpu),
    }
    return {name: value for name, value in values.items() if value is not None}


def _ancestry(root: Path, path: str) -> Iterator[Path]:
    """Yield the group's folder and those above it; inside a container the path may be the host's, and not be there."""
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


def _cores(path: Path) -> float | None:
    try:
        quota, period = path.read_text("utf-8").split()
        return float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota(folder: Path) -> float | None:
    quota, period = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
    return quota / period if quota is not None and period and quota > 0 else None


def _smallest(values: Iterator[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
