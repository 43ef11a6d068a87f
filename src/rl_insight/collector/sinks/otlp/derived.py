"""What is derived from spans as OTLP's bytes: one resource for each run."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator

import msgspec

from rl_insight.collector.sinks.otlp.metrics import EncodedMetric, number_metric
from rl_insight.collector.sinks.otlp.values import ITEM, attributes
from rl_insight.collector.sinks.protobuf import BYTES, FIXED64, VARINT, double, fixed64, sized, tag, text, varint
from rl_insight.metrics import Distribution, Family, LabelItems
from rl_insight.schema import Process

SERVICE = "rl-insight"
"""The `service.name` of what no process of a run has recorded itself."""

# metrics.v1.Metric, Histogram, HistogramDataPoint, Exemplar
_NAME, _DESCRIPTION, _HISTOGRAM = tag(1, BYTES), tag(2, BYTES), tag(9, BYTES)
_POINT, _CUMULATIVE = tag(1, BYTES), tag(2, VARINT) + varint(2)
_START, _TIME, _COUNT, _TOTAL = tag(2, FIXED64), tag(3, FIXED64), tag(4, FIXED64), tag(5, FIXED64)
_BUCKET_COUNTS, _BOUNDS, _EXEMPLAR, _ATTRIBUTE = tag(6, BYTES), tag(7, BYTES), tag(8, BYTES), tag(9, BYTES)
_EXEMPLAR_TIME, _EXEMPLAR_VALUE, _TRACE_ID = tag(2, FIXED64), tag(3, FIXED64), tag(5, BYTES)

_Run = tuple[str, str, str]


def encode_derived(
    families: Iterable[Family], started_ns: int, now_ns: int
) -> Iterator[tuple[Process, list[EncodedMetric]]]:
    """Yield the derived metrics of each run, with a process that represents it."""
    by_run: dict[_Run, list[EncodedMetric]] = {}
    for family in families:
        for run, part in _by_run(family).items():
            by_run.setdefault(run, []).append(_encode(part, started_ns, now_ns))
    for (project, experiment_name, run_id), metrics in by_run.items():
        process = Process(
            process_id=f"{SERVICE}/{project}/{experiment_name}/{run_id}",
            project=project,
            experiment_name=experiment_name,
            run_id=run_id,
            role=SERVICE,
            host=socket.gethostname(),
            pid=os.getpid(),
            started_ns=started_ns,
        )
        yield process, metrics


def _by_run(family: Family) -> dict[_Run, Family]:
    parts: dict[_Run, Family] = {}
    for point in family.points:
        # A total of no run is sent only once it has counted something: that there were too many series.
        if not point.labels and not point.value:
            continue
        given = dict(point.labels)
        run = (given.get("project", ""), given.get("experiment_name", ""), given.get("run_id", ""))
        if run not in parts:
            parts[run] = msgspec.structs.replace(family, points=[])
        parts[run].points.append(point)
    return parts


def _encode(family: Family, started_ns: int, now_ns: int) -> EncodedMetric:
    if not family.kind.is_distribution:
        start_ns = started_ns if family.kind.is_cumulative else 0
        points = [(dict(point.labels), point.value) for point in family.points]
        return number_metric(family.name, family.kind.name, family.documentation, points, start_ns, now_ns)  # type: ignore[arg-type]
    head = _START + fixed64(started_ns) + _TIME + fixed64(now_ns)
    bounds = family.bounds or ()
    data = b"".join(
        _POINT + sized(head + _histogram_point(point.labels, point.value, bounds))
        for point in family.points
        if isinstance(point.value, Distribution)
    )
    metric = _NAME + text(family.name) + _DESCRIPTION + text(family.documentation)
    return EncodedMetric(ITEM + sized(metric + _HISTOGRAM + sized(data + _CUMULATIVE)), len(family.points))


def _histogram_point(items: LabelItems, value: Distribution, bounds: tuple[float, ...]) -> bytes:
    counts = [value.buckets.get(position, 0) for position in range(len(bounds) + 1)]
    return b"".join(
        [
            _COUNT + fixed64(value.total_count),
            _TOTAL + double(value.sum),
            _BUCKET_COUNTS + sized(b"".join([fixed64(count) for count in counts])),
            _BOUNDS + sized(b"".join([double(bound) for bound in bounds])),
            *_exemplars(value),
            attributes(_ATTRIBUTE, dict(items)),
        ]
    )


def _exemplars(value: Distribution) -> Iterable[bytes]:
    for found in value.exemplars.values():
        trace = _TRACE_ID + sized(bytes.fromhex(found.trace_id))
        yield _EXEMPLAR + sized(_EXEMPLAR_TIME + fixed64(found.time_ns) + _EXEMPLAR_VALUE + double(found.value) + trace)
