"""What is derived from spans as OTLP's bytes: one resource for each run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator

from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.derived_families import DURATION_BOUNDS, DerivedFamily, Durations
from rl_insight.collector.series import LabelItems
from rl_insight.collector.sinks.otlp.metrics import EncodedMetric, number_metric
from rl_insight.collector.sinks.otlp.values import ITEM, attributes
from rl_insight.collector.sinks.protobuf import BYTES, FIXED64, VARINT, double, fixed64, sized, tag, text, varint
from rl_insight.schema import Process

SERVICE = "rl-insight"
"""The `service.name` of what no process of a run has recorded itself."""

# metrics.v1.Metric, Histogram, HistogramDataPoint, Exemplar
_NAME, _DESCRIPTION, _HISTOGRAM = tag(1, BYTES), tag(2, BYTES), tag(9, BYTES)
_POINT, _CUMULATIVE = tag(1, BYTES), tag(2, VARINT) + varint(2)
_START, _TIME, _COUNT, _TOTAL = tag(2, FIXED64), tag(3, FIXED64), tag(4, FIXED64), tag(5, FIXED64)
_BUCKET_COUNTS, _BOUNDS, _EXEMPLAR, _ATTRIBUTE = tag(6, BYTES), tag(7, BYTES), tag(8, BYTES), tag(9, BYTES)
_EXEMPLAR_TIME, _EXEMPLAR_VALUE, _TRACE_ID = tag(2, FIXED64), tag(3, FIXED64), tag(5, BYTES)

_ENCODED_BOUNDS = _BOUNDS + sized(b"".join([double(bound) for bound in DURATION_BOUNDS]))


def encode_derived(derived: DerivedMetrics, now_ns: int) -> Iterator[tuple[Process, list[EncodedMetric]]]:
    """Yield the derived metrics of each run, with the process that stands for it."""
    by_run: dict[tuple[str, str, str], list[EncodedMetric]] = {}
    for family in derived.families():
        for run, part in _by_run(family).items():
            by_run.setdefault(run, []).append(_encode(part, derived.started_ns, now_ns))
    for (project, experiment_name, run_id), metrics in by_run.items():
        process = Process(
            process_id=f"{SERVICE}/{project}/{experiment_name}/{run_id}",
            project=project,
            experiment_name=experiment_name,
            run_id=run_id,
            role=SERVICE,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ns=derived.started_ns,
        )
        yield process, metrics


def _by_run(family: DerivedFamily) -> dict[tuple[str, str, str], DerivedFamily]:
    parts: dict[tuple[str, str, str], DerivedFamily] = {}

    def part(items: LabelItems) -> DerivedFamily:
        given = dict(items)
        run = (given.get("project", ""), given.get("experiment_name", ""), given.get("run_id", ""))
        if run not in parts:
            parts[run] = DerivedFamily(family.name, family.kind, family.documentation, [], [])
        return parts[run]

    for items, value in family.values:
        # What is about no run is told only once there is something to tell: that too many series were asked for.
        if items or value:
            part(items).values.append((items, value))
    for items, durations in family.durations:
        part(items).durations.append((items, durations))
    return parts


def _encode(family: DerivedFamily, started_ns: int, now_ns: int) -> EncodedMetric:
    if family.kind != "histogram":
        start_ns = started_ns if family.kind == "counter" else 0
        points = [(dict(items), value) for items, value in family.values]
        return number_metric(family.name, family.kind, family.documentation, points, start_ns, now_ns)
    head = _START + fixed64(started_ns) + _TIME + fixed64(now_ns)
    data = b"".join([_POINT + sized(head + _histogram_point(*row)) for row in family.durations])
    metric = _NAME + text(family.name) + _DESCRIPTION + text(family.documentation)
    return EncodedMetric(
        ITEM + sized(metric + _HISTOGRAM + sized(data + _CUMULATIVE)),
        len(family.durations),
    )


def _histogram_point(items: LabelItems, durations: Durations) -> bytes:
    counts = durations.counts
    return b"".join(
        [
            _COUNT + fixed64(sum(counts)),
            _TOTAL + double(durations.seconds),
            _BUCKET_COUNTS + sized(b"".join([fixed64(count) for count in counts])),
            _ENCODED_BOUNDS,
            *_exemplars(durations),
            attributes(_ATTRIBUTE, dict(items)),
        ]
    )


def _exemplars(durations: Durations) -> Iterable[bytes]:
    for found in durations.exemplars.values():
        trace = _TRACE_ID + sized(bytes.fromhex(found.trace_id))
        yield _EXEMPLAR + sized(
            _EXEMPLAR_TIME + fixed64(found.time_ns) + _EXEMPLAR_VALUE + double(found.seconds) + trace
        )
