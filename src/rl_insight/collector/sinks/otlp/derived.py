"""What is derived from spans as OTLP: one resource for each run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator

import msgspec

from rl_insight.collector.run_activity import RunKey
from rl_insight.metrics import Family
from rl_insight.otlp.encode.protobuf import EncodedMetric, encode_family
from rl_insight.schema import Process

SERVICE = "rl-insight"
"""The `service.name` of what no process of a run has recorded itself."""


def encode_derived(
    families: Iterable[Family], started_ns: int, now_ns: int
) -> Iterator[tuple[Process, list[EncodedMetric]]]:
    """Yield the derived metrics of each run, with a process that represents it."""
    by_run: dict[RunKey, list[EncodedMetric]] = {}
    for family in families:
        for run, part in _by_run(family).items():
            by_run.setdefault(run, []).append(encode_family(part, started_ns, now_ns))
    for run, metrics in by_run.items():
        yield run_process(run, started_ns), metrics


def run_process(run: RunKey, started_ns: int = 0) -> Process:
    """Return a process that represents a run: what no process of the run has recorded itself is sent as its own."""
    return Process(
        process_id=f"{SERVICE}/{run.project}/{run.experiment_name}/{run.run_id}",
        project=run.project,
        experiment_name=run.experiment_name,
        run_id=run.run_id,
        role=SERVICE,
        host=socket.gethostname(),
        pid=os.getpid(),
        started_ns=started_ns,
    )


def _by_run(family: Family) -> dict[RunKey, Family]:
    parts: dict[RunKey, Family] = {}
    for point in family.points:
        # A total of no run is sent only once it has counted something: that there were too many series.
        if not point.labels and not point.value:
            continue
        given = dict(point.labels)
        run = RunKey(given.get("project", ""), given.get("experiment_name", ""), given.get("run_id", ""))
        if run not in parts:
            parts[run] = msgspec.structs.replace(family, points=[])
        parts[run].points.append(point)
    return parts
