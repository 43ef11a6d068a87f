"""The metrics of a collector as Prometheus scrapes them: text format 0.0.4 and OpenMetrics 1.0.

A renderer of our own: one pass over the series. The general-purpose one in `prometheus_client` builds an object for
every sample: it takes twice as long for gauges, and six times for histograms of a hundred buckets.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import inf, isnan

import msgspec

from rl_insight.collector.collector import InProcessCollector
from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.derived_families import DURATION_BOUNDS, DerivedFamily
from rl_insight.collector.series import Distribution, Family, SeriesKey
from rl_insight.collector.status import CollectorStatus
from rl_insight.schema.histogram import lower_bound, upper_bound
from rl_insight.schema.names import MetricKind, exposed_name

TEXT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_OPENMETRICS_SUFFIXES = {
    "counter": ("", "_total", "_created"),
    "gauge": ("",),
    "histogram": ("", "_bucket", "_sum", "_count", "_created"),
}
_JUST_BELOW_ZERO = -sys.float_info.min
_NEEDS_ESCAPE = re.compile(r'[\\\n"]')


class HealthFamily(msgspec.Struct, frozen=True):
    """A metric about the collector itself."""

    name: str
    """Without the namespace."""
    kind: MetricKind
    documentation: str
    values: list[tuple[dict[str, str], float]]


class PrometheusRenderer:
    """Renders the metrics that a collector holds, and its own health, for Prometheus.

    Names are `<namespace>_<name>`, counters end in `_total`. A series has the labels its user gave plus `project`,
    `experiment_name` and `run_id`, each where it is not empty. A histogram has a bucket for every bound that any series
    of its metric ever needed, so that `sum by (le)` adds like to like.

    With `derived`, a sink of the same collector, what is derived from spans stands on the page too; its histograms
    carry trace ids as exemplars in OpenMetrics.

    >>> body, content_type = PrometheusRenderer(InProcessCollector()).render("text/plain")
    >>> b"rl_insight_monitor_collector_batches_total 0" in body
    True
    """

    def __init__(self, collector: InProcessCollector, derived: DerivedMetrics | None = None) -> None:
        self._collector = collector
        self._derived = derived

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return the page and its content type for an HTTP `Accept` header.

        OpenMetrics is given to those who ask for it, unless something on the page cannot be said in it: negative
        observations, a sum that is not a number, a gauge called as another metric's `_created`. Then it is the text
        format, which says it all.
        """
        health = health_families(self._collector.status())
        namespace = self._collector.namespace
        families = sorted(self._collector.series.families(), key=lambda family: family.name)
        derived = self._derived_families(families)
        openmetrics = wants_openmetrics(accept) and _fits_openmetrics(families, [*health, *derived])
        lines: list[str] = []
        for family in families:
            name = exposed_name(namespace, family.name, family.kind)
            documentation = family.documentation or f"{family.kind.capitalize()} {family.name}"
            lines += _header(name, family.kind, documentation, openmetrics=openmetrics)
            lines += _histogram_lines(name, family) if family.kind == "histogram" else _value_lines(name, family)
        for own in health:
            name = exposed_name(namespace, own.name, own.kind)
            lines += _header(name, own.kind, own.documentation, openmetrics=openmetrics)
            lines += [f"{name}{label_text(labels)} {number(value)}" for labels, value in own.values]
        for made in derived:
            name = exposed_name(namespace, made.name, made.kind)
            lines += _header(name, made.kind, made.documentation, openmetrics=openmetrics)
            lines += [f"{name}{_braces(_pairs(labels))} {number(value)}" for labels, value in made.values]
            lines += _duration_lines(name, made, openmetrics=openmetrics)
        lines.append("# EOF\n" if openmetrics else "")
        return "\n".join(lines).encode(), OPENMETRICS_TYPE if openmetrics else TEXT_TYPE

    def _derived_families(self, families: list[Family]) -> list[DerivedFamily]:
        if self._derived is None:
            return []
        taken = {family.name for family in families}
        return [family for family in self._derived.families() if family.name not in taken]


def wants_openmetrics(accept: str) -> bool:
    """Tell whether an `Accept` header prefers OpenMetrics to the text format.

    >>> wants_openmetrics("application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    True
    """
    weights = {"application/openmetrics-text": 0.0, "text/plain": 0.0}
    for choice in accept.split(","):
        media, *parameters = (part.strip().lower() for part in choice.split(";"))
        weight = next((part[2:] for part in parameters if part.startswith("q=")), "1")
        if media in weights:
            try:
                weights[media] = float(weight)
            except ValueError:
                weights[media] = 0.0
    openmetrics, text = weights.values()
    return openmetrics > 0.0 and openmetrics >= text


def number(value: float) -> str:
    """Return a number as both formats spell it."""
    if value != value:  # noqa: PLR0124 -- the quickest test for NaN
        return "NaN"
    if value in {inf, -inf}:
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)


def label_text(labels: Mapping[str, str]) -> str:
    """Return labels as both formats spell them, in braces; nothing for none.

    >>> label_text({"state": "rollout"})
    '{state="rollout"}'
    """
    return _braces(_pairs(labels.items()))


def bucket_bounds(codes: Iterable[int]) -> list[tuple[float, list[int]]]:
    """Return the bounds to expose for ascending bucket codes, each with the codes that end at it.

    Below each run of adjoining buckets stands one more bound, where nothing is counted: without it, interpolation
    would spread the first bucket of the run over the empty space below.
    """
    bounds: list[tuple[float, list[int]]] = []
    for code in codes:
        below = lower_bound(code) if code else _JUST_BELOW_ZERO
        above = upper_bound(code)
        if below > -inf and (code or bounds) and (not bounds or bounds[-1][0] < below):
            bounds.append((below, []))
        if above == inf:
            continue
        if bounds and bounds[-1][0] >= above:
            # The smallest numbers have fewer bounds than buckets.
            bounds[-1][1].append(code)
        else:
            bounds.append((above, [code]))
    return bounds


def health_families(status: CollectorStatus) -> list[HealthFamily]:
    """Return a collector's status as metrics."""
    sinks = status.sinks.values()
    return [
        _single("collector_batches", "counter", "Batches taken.", status.batches),
        _single("collector_bytes", "counter", "Bytes of the batches taken.", status.bytes),
        _single("collector_duplicate_batches", "counter", "Batches that had been taken before.", status.duplicates),
        _single("collector_missing_batches", "counter", "Batches that never arrived.", status.missing_batches),
        _single("collector_series", "gauge", "Metric series held.", status.series),
        _by("collector_refused_batches", "counter", "Payloads refused.", "reason", status.refused.items()),
        _by("collector_refused_samples", "counter", "Metric rows refused.", "reason", status.refused_samples.items()),
        _by("collector_events", "counter", "Rows taken.", "kind", status.events.items()),
        _by("collector_processes", "gauge", "Processes known.", "state", _process_states(status).items()),
        HealthFamily(
            "collector_clock_offset_seconds",
            "gauge",
            "What to add to a process's clock to get the collector's.",
            [
                ({"process_id": process.process_id, "host": process.host}, process.clock_offset_ns / 1e9)
                for process in status.processes.values()
                if process.clock_offset_ns is not None and not process.final
            ],
        ),
        _by("collector_sink_queued", "gauge", "Batches that wait.", "sink", ((s.name, s.queued) for s in sinks)),
        _by("collector_sink_written", "counter", "Batches written.", "sink", ((s.name, s.written) for s in sinks)),
        _by("collector_sink_failed", "counter", "Batches that failed.", "sink", ((s.name, s.failed) for s in sinks)),
        _by("collector_sink_dropped", "counter", "Batches dropped.", "sink", ((s.name, s.dropped) for s in sinks)),
        HealthFamily(
            "telemetry_lost",
            "counter",
            "What processes recorded and had to give up.",
            [({"kind": loss.kind, "reason": loss.reason}, loss.count) for loss in status.losses],
        ),
    ]


def _single(name: str, kind: MetricKind, documentation: str, value: float) -> HealthFamily:
    return HealthFamily(name, kind, documentation, [({}, value)])


def _by(
    name: str, kind: MetricKind, documentation: str, label: str, items: Iterable[tuple[str, float]]
) -> HealthFamily:
    return HealthFamily(name, kind, documentation, [({label: key}, value) for key, value in items])


def _process_states(status: CollectorStatus) -> dict[str, int]:
    states = {"live": 0, "silent": 0, "ended": 0}
    for process in status.processes.values():
        states["ended" if process.final else "silent" if process.silent else "live"] += 1
    return states


def _fits_openmetrics(families: list[Family], health: Sequence[HealthFamily | DerivedFamily]) -> bool:
    kinds = [(family.name, family.kind) for family in families] + [(own.name, own.kind) for own in health]
    names = Counter(f"{name}{suffix}" for name, kind in kinds for suffix in _OPENMETRICS_SUFFIXES[kind])
    if any(count > 1 for count in names.values()):
        return False
    histograms = [family for family in families if family.kind == "histogram"]
    if any(family.codes and family.codes[0] < 0 for family in histograms):
        return False
    sums = (distribution.sum for family in histograms for _, distribution in family.distributions)
    return not any(isnan(total) or total < 0 for total in sums)


def _header(name: str, kind: MetricKind, documentation: str, *, openmetrics: bool) -> list[str]:
    if openmetrics and kind == "counter":
        name = name.removesuffix("_total")
    text = documentation.replace("\\", "\\\\").replace("\n", "\\n")
    if openmetrics:
        text = text.replace('"', '\\"')
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def _value_lines(name: str, family: Family) -> list[str]:
    return [f"{name}{_braces(_labels(key))} {number(value)}" for key, value in family.values]


def _histogram_lines(name: str, family: Family) -> Iterator[str]:
    bounds = [(f'le="{number(bound)}"}}', codes) for bound, codes in bucket_bounds(family.codes)]
    for key, distribution in family.distributions:
        labels = _labels(key)
        prefix = f"{name}_bucket{{{labels}{',' if labels else ''}"
        # At least what the buckets hold, should a process ever report fewer values than it filed.
        count = max(distribution.count, sum(distribution.buckets.values()))
        yield from _bucket_lines(prefix, bounds, distribution)
        yield f'{prefix}le="+Inf"}} {count}'
        braces = _braces(labels)
        yield f"{name}_sum{braces} {number(distribution.sum)}"
        yield f"{name}_count{braces} {count}"


def _bucket_lines(prefix: str, bounds: list[tuple[str, list[int]]], distribution: Distribution) -> Iterator[str]:
    count_of = distribution.buckets.get
    running = 0
    for bound, codes in bounds:
        for code in codes:
            running += count_of(code, 0)
        yield f"{prefix}{bound} {running}"


def _duration_lines(name: str, family: DerivedFamily, *, openmetrics: bool) -> Iterator[str]:
    for items, durations in family.durations:
        labels = _pairs(items)
        prefix = f"{name}_bucket{{{labels}{',' if labels else ''}"
        running = 0
        for position, bound in enumerate([*DURATION_BOUNDS, inf]):
            running += durations.counts[position]
            line = f'{prefix}le="{number(bound)}"}} {running}'
            exemplar = durations.exemplars.get(position) if openmetrics else None
            if exemplar is not None:
                stamp = number(exemplar.time_ns / 1e9)
                line += f' # {{trace_id="{exemplar.trace_id}"}} {number(exemplar.seconds)} {stamp}'
            yield line
        yield f"{name}_sum{_braces(labels)} {number(durations.seconds)}"
        yield f"{name}_count{_braces(labels)} {running}"


def _labels(key: SeriesKey) -> str:
    project, experiment_name, run_id = key.run
    run = (("experiment_name", experiment_name), ("project", project), ("run_id", run_id))
    return _pairs([*key.labels, *(pair for pair in run if pair[1])])


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    return ",".join([f'{name}="{_escape(value)}"' for name, value in items])


def _braces(labels: str) -> str:
    return f"{{{labels}}}" if labels else ""


def _escape(value: str) -> str:
    if not _NEEDS_ESCAPE.search(value):
        return value
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
