"""The duration of each view over a store of ten million spans, queried over HTTP as the page does.

Once with 64 processes of one lane each, once with 1,000 processes and 5,000 lanes. The stores are imports: a server
diagnoses each of them once, which takes ten seconds or more of one core. That is turned off here.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.harness import Figure, Options, say
from benchmarks.make_store import COUNTERS, DISTRIBUTIONS, FEW, GAUGES, MANY, NAMES, RUN_ID, Size, cached_data_dir
from benchmarks.server_process import ServerProcess, running_server
from rl_insight.store.queries.metrics import MAX_LINES

NAME = "query"

_SECOND = 1_000_000_000
_MEBIBYTE = 1024 * 1024
_BUDGET_MS = 300.0
_WORDS = ("diagnosis.enabled=false",)
_SPANS, _HOTSPOT_SPANS, _QUICK_SPANS = 10_000_000, 5_000_000, 200_000

Parameters = dict[str, Any]
View = Callable[[], tuple[str, Parameters]]
"""Returns a path and random parameters."""


def run(options: Options) -> Iterator[Figure]:
    """Query every view many times, each time with different parameters."""
    for size in (FEW, MANY):
        yield from _all_views(size, options)
    spans = _QUICK_SPANS if options.quick else _HOTSPOT_SPANS
    say(f"query: hotspots over {spans:,} spans")
    with running_server(_WORDS, cached_data_dir(spans)) as server:
        took = _ask(server, lambda: ("/api/v1/hotspots", {}), rounds=3 if options.quick else 15)
        yield Figure(f"hotspots over {spans:,} spans, median", statistics.median(took), "ms", 600)
        yield Figure(f"hotspots over {spans:,} spans, slowest", max(took), "ms")


def _all_views(size: Size, options: Options) -> Iterator[Figure]:
    spans = _QUICK_SPANS if options.quick else _SPANS
    say(f"query: a store of {spans:,} spans of {size.processes:,} processes (generated once and cached)")
    with running_server(_WORDS, cached_data_dir(spans, size)) as server:
        for name, view in Views(server).by_name().items():
            say(f"query: {name}{size.suffix}")
            took = _ask(server, view, rounds=8 if options.quick else 60)
            yield Figure(f"{name}{size.suffix}, p95", _share(took, 0.95), "ms", budget=_BUDGET_MS)
            yield Figure(f"{name}{size.suffix}, median", statistics.median(took), "ms")
        peak = server.peak_memory_bytes() / _MEBIBYTE
        yield Figure(f"server memory after all views{size.suffix}, peak", peak, "MiB")


def _ask(server: ServerProcess, view: View, rounds: int) -> list[float]:
    """Return the milliseconds of each response, from the first byte sent to the last byte read."""
    took = []
    for number in range(rounds + 1):
        path, parameters = view()
        begun = time.perf_counter()
        server.get(path, run=RUN_ID, **parameters)
        if number:  # the first one opens the file
            took.append((time.perf_counter() - begun) * 1000)
    return took


def _share(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


class Views:
    """All views of a run, each with random parameters that match the content of the run."""

    def __init__(self, server: ServerProcess) -> None:
        self._random = random.Random(7)
        summary = server.get_json("/api/v1/summary", run=RUN_ID)
        self._start: int = summary["start_ns"]
        self._end: int = summary["end_ns"]
        self._last_step: int = summary["last_step"]
        self._lanes = [lane["lane_id"] for lane in server.get_json("/api/v1/lanes", run=RUN_ID)]
        self._known = [found for _ in range(20) for found in self._some_spans(server)]

    def _some_spans(self, server: ServerProcess) -> list[dict[str, Any]]:
        window = self._window(narrowest_s=5.0)
        found: list[dict[str, Any]] = server.get_json("/api/v1/spans", run=RUN_ID, limit=20, **window)
        return found

    def by_name(self) -> dict[str, View]:
        """Return the views by the names of their figures."""
        pick = self._random.choice
        return {
            "summary": lambda: ("/api/v1/summary", {}),
            "processes": lambda: ("/api/v1/processes", {}),
            "losses": lambda: ("/api/v1/losses", {}),
            "lanes": lambda: ("/api/v1/lanes", {}),
            "timeline, any window": self._timeline,
            "timeline, whole run": lambda: (
                "/api/v1/timeline",
                {"start_ns": self._start, "end_ns": self._end, "pixels": self._random.randint(500, 2500)},
            ),
            "timeline, some lanes": self._timeline_of_lanes,
            "timeline, any window, with steps": self._timeline_with_steps,
            "one span": self._span,
            "spans by name": lambda: ("/api/v1/spans", {"name": pick(NAMES), "order": pick(["newest", "longest"])}),
            "spans by part of the name": lambda: ("/api/v1/spans", {"name_contains": pick(NAMES)[2:5]}),
            "spans with errors": lambda: ("/api/v1/spans", {"status": "error", **self._window()}),
            "spans of a session": lambda: ("/api/v1/spans", {"session_id": pick(self._known)["session_id"]}),
            "spans of a trace": lambda: ("/api/v1/spans", {"trace_id": pick(self._known)["trace_id"]}),
            "spans of a step": lambda: ("/api/v1/spans", {"step": self._step(), "order": "longest"}),
            "spans by text": lambda: ("/api/v1/spans", {"text": f"policy-{self._random.randint(0, 60)}"}),
            "longest spans": lambda: ("/api/v1/spans", {"order": "longest", **self._window()}),
            "open work": lambda: ("/api/v1/open/work", {}),
            "open spans": lambda: ("/api/v1/open/spans", {}),
            "hotspots of a step": lambda: ("/api/v1/hotspots", {"step": self._step(), "group_by": self._group()}),
            "hotspots of the last steps": lambda: (
                "/api/v1/hotspots",
                {"last_steps": self._random.randint(1, 5), "group_by": self._group()},
            ),
            "hotspots of a minute": lambda: ("/api/v1/hotspots", {**self._minute(), "group_by": self._group()}),
            "flame of the last steps": lambda: (
                "/api/v1/hotspots/flame",
                {"last_steps": self._random.randint(1, 5)},
            ),
            "flame of a minute": lambda: ("/api/v1/hotspots/flame", self._minute()),
            "steps": lambda: ("/api/v1/steps", {"limit": pick([20, 200])}),
            "step breakdown": lambda: ("/api/v1/steps/breakdown", self._steps(20)),
            "idle share by role": lambda: ("/api/v1/steps/idle", self._steps(15)),
            "what steps waited for": lambda: ("/api/v1/steps/critical_path", {}),
            "a step compared with typical ones": lambda: ("/api/v1/steps/compare", {"step": self._step()}),
            "what changed at a step": lambda: ("/api/v1/steps/changes", {"step": self._step()}),
            "ranks by step": lambda: ("/api/v1/steps/ranks", {"name": pick(NAMES), **self._steps(100)}),
            "gauge of ranks by step": lambda: ("/api/v1/steps/ranks", {"metric": pick(GAUGES), **self._steps(100)}),
            "a name over time": lambda: ("/api/v1/spans/series", {"name": pick(NAMES), "axis": "time"}),
            "a name by step": lambda: ("/api/v1/spans/series", {"name": pick(NAMES)}),
            "marks": lambda: ("/api/v1/marks", {}),
            "step metrics": lambda: ("/api/v1/steps/metrics", self._steps(200)),
            "sessions": self._sessions,
            "sessions in flight": lambda: ("/api/v1/sessions/in_flight", {}),
            "groups of samples": lambda: ("/api/v1/sessions/groups", {}),
            "groups by step": lambda: ("/api/v1/sessions/groups/steps", {}),
            "staleness": lambda: ("/api/v1/sessions/staleness", {}),
            "findings": lambda: ("/api/v1/findings", {}),
            "metrics": lambda: ("/api/v1/metrics", {}),
            "metric labels": lambda: ("/api/v1/metrics/labels", {"label": pick(["role", "rank", "worker"])}),
            "metric range": self._range,
            "metric quantiles": lambda: ("/api/v1/metrics/quantiles", self._distribution()),
            "metric heat map": lambda: ("/api/v1/metrics/heatmap", self._distribution()),
            "logs": lambda: ("/api/v1/logs", {"text": f"{self._random.randint(1, 30)} turns", **self._window()}),
            "events": lambda: ("/api/v1/events", {**self._window()}),
        }

    def _window(self, narrowest_s: float = 0.01) -> Parameters:
        """Return a window anywhere in the run; its width is log-uniform."""
        longest = self._end - self._start
        width = narrowest_s * _SECOND * (longest / (narrowest_s * _SECOND)) ** self._random.random()
        start = self._start + self._random.random() * (longest - width)
        return {"start_ns": int(start), "end_ns": int(start + width) + 1}

    def _minute(self) -> Parameters:
        start = int(self._start + self._random.random() * max(0, self._end - self._start - 60 * _SECOND))
        return {"start_ns": start, "end_ns": start + 60 * _SECOND}

    def _step(self) -> int:
        return self._random.randint(0, self._last_step)

    def _steps(self, most: int) -> Parameters:
        first = self._step()
        return {"first": first, "last": min(self._last_step, first + self._random.randint(0, most))}

    def _group(self) -> str:
        return self._random.choice(["name", "role", "lane"])

    def _timeline(self) -> tuple[str, Parameters]:
        return "/api/v1/timeline", {"pixels": self._random.randint(500, 2500), **self._window()}

    def _timeline_with_steps(self) -> tuple[str, Parameters]:
        path, parameters = self._timeline()
        return path, parameters | {"steps": "true"}

    def _timeline_of_lanes(self) -> tuple[str, Parameters]:
        path, parameters = self._timeline()
        return path, parameters | {"lane": self._random.sample(self._lanes, min(8, len(self._lanes)))}

    def _span(self) -> tuple[str, Parameters]:
        known = self._random.choice(self._known)
        return "/api/v1/span", {"span_id": known["span_id"], "process_id": known["process_id"]}

    def _sessions(self) -> tuple[str, Parameters]:
        filters: list[Parameters] = [
            {},
            {"status": "rejected"},
            {"text": f"task-{self._random.randint(0, 5000)}"},
            {"first_step": self._step()},
        ]
        order = self._random.choice(["submit_ts", "total_s", "reward"])
        return "/api/v1/sessions", {"order": order, **self._random.choice(filters)}

    def _range(self) -> tuple[str, Parameters]:
        window = self._window(narrowest_s=10.0)
        width = max(_SECOND, (window["end_ns"] - window["start_ns"]) // 500)
        groups = ["", "role", "rank"] if len(self._lanes) <= MAX_LINES else ["", "role"]
        group_by = self._random.choice(groups)
        metric = self._random.choice([*GAUGES, *COUNTERS])
        return "/api/v1/metrics/range", {"metric": metric, "width": width, "group_by": group_by, **window}

    def _distribution(self) -> Parameters:
        window = self._window(narrowest_s=10.0)
        width = max(_SECOND, (window["end_ns"] - window["start_ns"]) // 200)
        return {"metric": self._random.choice(DISTRIBUTIONS), "width": width, **window}
