"""Run PyTorch's profiler on chosen steps, and merge the profiles into the timeline of the process.

>>> profiler = TorchProfiler(steps=[10, 200])  # doctest: +SKIP
>>> for step in range(1000):  # doctest: +SKIP
...     profiler.begin_step(step)
...     train(step)
>>> profiler.close()  # doctest: +SKIP
"""

from __future__ import annotations

import gzip
import logging
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec

from rl_insight.monitor import Monitor, default_monitor

logger = logging.getLogger("rl_insight")

_MAX_SPANS = 50_000
"""The most spans to merge per profile, the longest first: there are millions of kernels."""


class TorchProfiler:
    """Profiles chosen steps, and records the profiles as spans on lanes of this process.

    Without PyTorch it logs a warning and does nothing.

    Args:
        steps: The steps to profile; a profiled step is slower.
        monitor: The monitor; the default one if None.
    """

    def __init__(self, steps: Iterable[int], monitor: Monitor | None = None) -> None:
        self._steps = frozenset(steps)
        self._monitor = monitor or default_monitor
        self._profile: Any = None
        self._step: int | None = None

    def begin_step(self, step: int) -> None:
        """Start a step: merge the previous profile, and profile this step if it is chosen."""
        self.close()
        if step in self._steps and "torch" in sys.modules:
            self._profile = begin_profile(f"step {step}")
        elif step in self._steps:
            logger.warning("step %d is not profiled: torch is not imported.", step)
        self._step = step

    def close(self) -> None:
        """End and merge a running profile; idempotent."""
        profile, self._profile = self._profile, None
        if profile is not None:
            end_profile(profile, f"step {self._step}", monitor=self._monitor, step=self._step)


def begin_profile(what: str, make: Callable[[Any], Any] = lambda profiler: profiler.profile()) -> Any:
    """Start a profile that `make` creates from `torch.profiler`; return None, with a warning, if that fails."""
    try:
        from torch import profiler  # type: ignore[import-not-found]

        profile = make(profiler)
        profile.__enter__()
    except Exception as error:  # noqa: BLE001  # no torch, no CUPTI, or another profiler is active
        logger.warning("%s is not profiled: %s: %s.", what, type(error).__name__, error)
        return None
    return profile


def end_profile(profile: Any, what: str, **how: Any) -> None:
    """End a running profile, and merge it with `merge_chrome_trace`; never raises."""
    try:
        profile.__exit__(None, None, None)
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "trace.json"
            profile.export_chrome_trace(str(path))
            merge_chrome_trace(path, **how)
    except Exception:  # training continues without the profile
        logger.exception("the profile of %s is lost.", what)


def merge_chrome_trace(
    trace: Any,
    *,
    monitor: Monitor | None = None,
    step: int | None = None,
    starts_ns: int | None = None,
    max_spans: int = _MAX_SPANS,
) -> int:
    """Record the complete events of a Chrome trace as finished spans; return how many.

    Each thread or stream of the trace gets the lane ``torch/<process>/<thread>``. PyTorch's traces have wall-clock
    times; a trace without a known origin is placed so that it ends now.

    Args:
        trace: A file, which may be compressed with gzip, or the decoded JSON document.
        monitor: The monitor; the default one if None.
        step: The training step of the spans.
        starts_ns: The wall-clock time of the earliest event, to override the times in the trace.
        max_spans: Record only this many spans, the longest ones.
    """
    monitor = monitor or default_monitor
    document = msgspec.json.decode(_read(Path(trace))) if isinstance(trace, (str, Path)) else trace
    events = document.get("traceEvents", []) if isinstance(document, dict) else document
    found = [event for event in events if isinstance(event, dict) and _is_interval(event)]
    if not found:
        return 0
    lanes = _lane_names(events)
    if starts_ns is None:
        origin_ns = _origin_ns(document, found)
    else:
        origin_ns = starts_ns - round(min(float(event["ts"]) for event in found) * 1000)
    chosen = sorted(found, key=lambda event: -float(event["dur"]))[:max_spans]
    if len(chosen) < len(found):
        logger.warning("only the longest %d of %d spans of a profile are merged.", len(chosen), len(found))
    with nullcontext() if step is None else monitor.step(step):
        for event in sorted(chosen, key=lambda event: float(event["ts"])):
            start_ns = origin_ns + round(float(event["ts"]) * 1000)
            place = (event.get("pid"), event.get("tid"))
            arguments = event.get("args")
            attributes = dict(arguments) if isinstance(arguments, dict) else {}
            if event.get("cat"):
                attributes["category"] = event["cat"]
            monitor.trace_span(
                str(event.get("name", "")),
                attributes,
                start_time_ns=start_ns,
                end_time_ns=start_ns + round(float(event["dur"]) * 1000),
                lane=f"torch/{lanes.get((place[0], None), place[0])}/{lanes.get(place, place[1])}",
            )
    return len(chosen)


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    return gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw


def _is_interval(event: dict[str, Any]) -> bool:
    timing = (event.get("ts"), event.get("dur"))
    return event.get("ph") == "X" and all(isinstance(value, (int, float)) and value >= 0 for value in timing)


def _lane_names(events: list[Any]) -> dict[tuple[Any, Any], str]:
    """Return the names from metadata events: of processes by (pid, None), of threads by (pid, tid)."""
    names: dict[tuple[Any, Any], str] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "M" or not isinstance(event.get("args"), dict):
            continue
        name = event["args"].get("name")
        if event.get("name") == "process_name" and name:
            names[event.get("pid"), None] = str(name).strip()
        elif event.get("name") == "thread_name" and name:
            names[event.get("pid"), event.get("tid")] = str(name).strip()
    return names


def _origin_ns(document: Any, events: list[dict[str, Any]]) -> int:
    base = document.get("baseTimeNanoseconds") if isinstance(document, dict) else None
    if isinstance(base, int) and not isinstance(base, bool):
        return base
    last_us = max(float(event["ts"]) + float(event["dur"]) for event in events)
    now_ns = time.time_ns()
    is_wall_time = abs(last_us * 1000 - now_ns) < 365 * 86_400 * 1e9
    return 0 if is_wall_time else now_ns - round(last_us * 1000)
