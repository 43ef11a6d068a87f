"""A summary of a run: what was recorded, whether it learned, where the time went."""

from __future__ import annotations

import json
import math
import urllib.parse
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rl_insight.schema.records import LossRecord, SampleRecord, SpanRecord, records
from rl_insight.transport import read_batches

FEW = 3
"""Steps at the start and at the end whose reward is averaged."""


FOREVER = 2**62 - 1


class SummaryError(Exception):
    """The server returned no summary."""


@dataclass(slots=True)
class SpanSummary:
    """All spans of one name."""

    count: int
    p50_s: float
    p95_s: float
    errors: int


@dataclass(slots=True)
class Summary:
    """The summary of a run."""

    processes: Counter[str] = field(default_factory=Counter)
    """Number of processes by role."""
    rewards: dict[int, float] = field(default_factory=dict)
    """Mean reward by step."""
    staleness_max: float = 0.0
    spans: dict[str, SpanSummary] = field(default_factory=dict)
    unfinished: int = 0
    """Spans that never ended."""
    tool_errors: Counter[str] = field(default_factory=Counter)
    """By type."""
    lost: int = 0
    """Events that were recorded but not kept."""

    def text(self) -> str:
        """Return the summary as lines for a terminal."""
        rewards = [self.rewards[step] for step in sorted(self.rewards)]
        roles = ", ".join(f"{count} {role}" for role, count in sorted(self.processes.items()))
        lines = [
            f"Processes   {roles}",
            f"Steps       {len(rewards)}, staleness at most {self.staleness_max:.0f} versions",
        ]
        if rewards:
            first, last = _mean(rewards[:FEW]), _mean(rewards[-FEW:])
            lines.append(f"Reward      {first:.2f} at the start, {last:.2f} at the end")
        errors = ", ".join(f"{count:.0f} {kind}" for kind, count in sorted(self.tool_errors.items())) or "none"
        lines.append(f"Tool errors {errors}")
        lines.append(f"Telemetry   {self.lost} events lost, {self.unfinished} spans never ended")
        lines.append(f"{'Span':<20} {'count':>7} {'p50 ms':>9} {'p95 ms':>9} {'errors':>7}")
        for name, span in sorted(self.spans.items(), key=lambda item: -item[1].count):
            times = f"{span.p50_s * 1e3:>9.1f} {span.p95_s * 1e3:>9.1f}"
            lines.append(f"{name:<20} {span.count:>7} {times} {span.errors:>7}")
        return "\n".join(lines)


def summarize_files(directory: Path) -> Summary:
    """Read a run back from the files that its processes wrote."""
    summary = Summary()
    roles: dict[str, str] = {}
    spans: dict[str, SpanRecord] = {}
    tool_errors: dict[tuple[str, str], float] = {}
    lost: dict[tuple[str, str, str], int] = {}
    for batch in read_batches(directory):
        roles[batch.process.process_id] = batch.process.role
        for record in records(batch):
            if isinstance(record, SpanRecord):  # an open span is reported again under its id when it ends
                spans[record.span_id] = record
            elif isinstance(record, SampleRecord) and record.metric == "reward_mean" and record.step is not None:
                summary.rewards[record.step] = float(record.value)
            elif isinstance(record, SampleRecord) and record.metric == "staleness_max":
                summary.staleness_max = max(summary.staleness_max, float(record.value))
            elif (
                isinstance(record, SampleRecord) and record.metric == "tool_errors"
            ):  # a total: the last value is the result
                tool_errors[record.process_id, record.labels["type"]] = float(record.value)
            elif isinstance(record, LossRecord):
                lost[record.process_id, record.kind, record.reason] = record.count
    summary.processes = Counter(roles.values())
    for (_, kind), count in tool_errors.items():
        summary.tool_errors[kind] += int(count)
    summary.lost = sum(lost.values())
    summary.unfinished = sum(record.duration_ns is None for record in spans.values())
    summary.spans = _by_name(list(spans.values()))
    return summary


class Api:
    """The queries of a server, for one run."""

    def __init__(self, url: str, token: str | None, run_id: str) -> None:
        self._url = f"{url.rstrip('/')}/api/v1"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._run_id = run_id
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a local server needs no proxy

    def get(self, path: str, **parameters: str | int) -> Any:
        """Run one query."""
        query = urllib.parse.urlencode({"run": self._run_id, **parameters})
        request = urllib.request.Request(f"{self._url}/{path}?{query}", headers=self._headers)
        try:
            with self._opener.open(request, timeout=30.0) as response:
                return json.load(response)
        except OSError as error:
            raise SummaryError(f"no summary: {self._url}/{path} did not respond: {error}.") from error

    def series(self, metric: str, aggregation: str, **parameters: str | int) -> list[dict[str, Any]]:
        """Return a metric's lines over all time; each has `labels`, `x` and `y`."""
        window = {"start_ns": 0, "end_ns": FOREVER}
        lines: list[dict[str, Any]] = self.get(
            "metrics/range", metric=metric, aggregation=aggregation, **window, **parameters
        )
        return lines


def summarize_api(url: str, token: str | None, run_id: str) -> Summary:
    """Query the summary of a run from a server."""
    api = Api(url, token, run_id)
    run = api.get("summary")
    summary = Summary(lost=run["lost"], unfinished=run["open_spans"])
    summary.processes.update(process["role"] for process in api.get("processes"))
    for line in api.series("reward_mean", "last", axis="step", width=1, group_by=""):
        summary.rewards = dict(zip(line["x"], line["y"], strict=True))
    for line in api.series("staleness_max", "max", width=FOREVER, group_by=""):
        summary.staleness_max = max(line["y"])
    for line in api.series("tool_errors", "increase", width=FOREVER, group_by="type"):
        summary.tool_errors[line["labels"]["type"]] += int(sum(line["y"]))
    for spot in api.get("hotspots"):
        times = spot["p50_ns"] / 1e9, spot["p95_ns"] / 1e9
        summary.spans[spot["name"]] = SpanSummary(spot["count"], *times, spot["errors"])
    return summary


def _by_name(spans: list[SpanRecord]) -> dict[str, SpanSummary]:
    durations: dict[str, list[float]] = {}
    errors: Counter[str] = Counter()
    for span in spans:
        if span.duration_ns is not None:
            durations.setdefault(span.name, []).append(span.duration_ns / 1e9)
            errors[span.name] += span.status == "error"
    return {
        name: SpanSummary(len(values), _quantile(values, 0.5), _quantile(values, 0.95), errors[name])
        for name, values in durations.items()
    }


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[math.ceil(share * len(ordered)) - 1]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
