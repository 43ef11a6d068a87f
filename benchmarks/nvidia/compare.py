"""Compares NVML's readings with those of `nvidia-smi`."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from rl_insight.hardware.base import Reading
from rl_insight.hardware.nvml import NvmlSource

_FIELDS = {
    "utilization_ratio": ("utilization.gpu", 0.01),
    "memory_used_bytes": ("memory.used", 1024.0**2),
    "power_watts": ("power.draw", 1.0),
    "temperature_celsius": ("temperature.gpu", 1.0),
    "sm_clock_hertz": ("clocks.sm", 1e6),
}
_RESOLUTION = {
    "utilization_ratio": 0.01,
    "memory_used_bytes": 1024.0**2,
    "power_watts": 1.0,
    "temperature_celsius": 1.0,
    "sm_clock_hertz": 15e6,
}
"""The resolution of the tool."""
_PERIOD_S = 0.5
_LOAD_START_S = 120.0


class Comparison(msgspec.Struct, frozen=True):
    """One quantity of one GPU, read by both."""

    gpu: str
    quantity: str
    pairs: int
    ours: float
    nvidia_smi: float
    noise: float
    """Standard deviation of `nvidia-smi`'s readings."""
    agrees: bool
    """Whether the means differ by at most two standard errors, or by the tool's resolution."""


def compare_with_nvidia_smi(seconds: float, *, load: bool) -> tuple[list[Comparison], str | None]:
    """Read both concurrently for a while; returns the comparisons and the kind of load.

    Raises:
        RuntimeError: there is nothing to compare; the message says why.
    """
    tool = shutil.which("nvidia-smi")
    if tool is None:
        raise RuntimeError("nvidia-smi was not found: it is part of the driver.")
    source = NvmlSource(pcie=False)
    if not source.is_available():
        raise RuntimeError("NVML cannot be used here: is nvidia-ml-py installed, and is there a GPU?")
    with contextlib.ExitStack() as stack:
        stack.callback(source.close)
        engine = stack.enter_context(_load(seconds)) if load else None
        pairs = _collect(source, tool, seconds)
    return _comparisons(pairs), engine


@contextlib.contextmanager
def _load(seconds: float) -> Iterator[str | None]:
    """Keep the GPUs busy from a separate process, and continue once it has begun."""
    command = [sys.executable, "-m", "benchmarks.nvidia.load", str(seconds + 10)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # our own module
        giving_up = threading.Timer(_LOAD_START_S, process.kill)
        giving_up.start()
        try:
            engine = (process.stdout.readline().strip() if process.stdout else "") or None
            giving_up.cancel()
            if engine:
                time.sleep(3.0)  # utilization and power are means over up to a second
            yield engine
        finally:
            giving_up.cancel()
            process.kill()


Pairs = dict[tuple[str, str], list[tuple[float, float]]]


def _collect(source: NvmlSource, tool: str, seconds: float) -> Pairs:
    pairs: Pairs = {}
    end = time.monotonic() + seconds
    never = threading.Event()
    while time.monotonic() < end:
        before = _by_gpu(source.read(never))
        shown = _query(tool)
        after = _by_gpu(source.read(never))
        for gpu, quantities in shown.items():
            for quantity, value in quantities.items():
                around = [found[gpu][quantity] for found in (before, after) if quantity in found.get(gpu, {})]
                if around:
                    pairs.setdefault((gpu, quantity), []).append((statistics.fmean(around), value))
        time.sleep(_PERIOD_S)
    return pairs


def _by_gpu(readings: list[Reading]) -> dict[str, dict[str, float]]:
    return {reading.index: reading.values for reading in readings if reading.kind == "gpu"}


def _query(tool: str) -> dict[str, dict[str, float]]:
    fields = ",".join(["index", *(field for field, _factor in _FIELDS.values())])
    command = [tool, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # found on PATH
    return parse_query(done.stdout)


def parse_query(text: str) -> dict[str, dict[str, float]]:
    """Parse the tool's lines; unknown values (`[N/A]`) are skipped.

    >>> parse_query("0, 97, 1024, 350.5, 41, [N/A]")["0"]["power_watts"]
    350.5
    """
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        index, *cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(_FIELDS):
            continue
        found[index] = {}
        for (quantity, (_field, factor)), cell in zip(_FIELDS.items(), cells, strict=True):
            with contextlib.suppress(ValueError):
                found[index][quantity] = float(cell) * factor
    return found


def _comparisons(pairs: Pairs) -> list[Comparison]:
    comparisons = []
    for (gpu, quantity), both in pairs.items():
        ours = statistics.fmean(pair[0] for pair in both)
        shown = statistics.fmean(pair[1] for pair in both)
        noise = statistics.stdev([pair[1] for pair in both]) if len(both) > 1 else 0.0
        margin = max(2 * noise / len(both) ** 0.5, _RESOLUTION[quantity])
        comparisons.append(Comparison(gpu, quantity, len(both), ours, shown, noise, abs(ours - shown) <= margin))
    return comparisons


def as_rows(comparisons: list[Comparison]) -> list[dict[str, Any]]:
    """Return the comparisons as plain values."""
    return [msgspec.to_builtins(comparison) for comparison in comparisons]
