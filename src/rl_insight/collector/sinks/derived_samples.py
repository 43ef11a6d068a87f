"""What is derived from spans, as a sink that pushes to Prometheus has to send it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from math import inf

from rl_insight.collector.derived import DerivedMetrics
from rl_insight.collector.derived_families import DURATION_BOUNDS, DerivedFamily, Durations
from rl_insight.collector.series import LabelItems
from rl_insight.collector.sinks.write_request import (
    TimeSeries,
    bound_label,
    exemplar,
    labels,
    sample,
    stale_marker,
    stamp,
)
from rl_insight.schema.names import exposed_name

_BOUNDS = [bound_label(bound) for bound in (*DURATION_BOUNDS, inf)]


class DerivedSamples:
    """Tells which derived series changed since they were last asked for; for one thread.

    A series that did not change comes again every `repeat_ms`, so that it stays in sight of instant queries. One that
    is gone, such as the open spans of a process that ended, comes once more with a marker that it has ended.

    Args:
        derived: a sink of the same collector.
        namespace: stands before every name.
        repeat_ms: how often a series that did not change is sent.
    """

    def __init__(self, derived: DerivedMetrics, *, namespace: str, repeat_ms: int) -> None:
        self._derived = derived
        self._namespace = namespace
        self._repeat_ms = repeat_ms
        self._known: dict[tuple[str, LabelItems], _Known] = {}

    def take(self, now_ms: int) -> tuple[list[TimeSeries], list[DerivedFamily]]:
        """Return what is to be sent at this time, and all metrics there are."""
        families = self._derived.families()
        found: list[TimeSeries] = []
        gone = self._known
        self._known = {}
        for family in families:
            name = exposed_name(self._namespace, family.name, family.kind)
            for items, value in family.values:
                known = gone.pop((name, items), None) or _Known((labels(_pairs(name, items)),))
                self._known[name, items] = known
                if known.is_due(value, now_ms, self._repeat_ms):
                    found.append(TimeSeries(known.labels[0] + sample(value, stamp(known.sent_ms)), 1))
            for items, durations in family.durations:
                before = gone.pop((name, items), None)
                histogram = before or _Known(_histogram_labels(name, items))
                self._known[name, items] = histogram
                if histogram.is_due(sum(durations.counts), now_ms, self._repeat_ms):
                    found += _histogram(histogram, durations)
        for ended in gone.values():
            found += ended.end(now_ms)
        return found, families

    def __len__(self) -> int:
        return len(self._known)


class _Known:
    """A series that was sent before; a histogram counts as one."""

    __slots__ = ("exemplar_ns", "labels", "sent_ms", "value")

    def __init__(self, encoded: tuple[bytes, ...]) -> None:
        self.labels = encoded
        """Of each series that the receiver has."""
        self.value: float | None = None
        self.sent_ms = 0
        self.exemplar_ns = 0
        """The time of the newest exemplar that was sent."""

    def is_due(self, value: float, now_ms: int, repeat_ms: int) -> bool:
        """Tell whether a value is to be sent; its time is `sent_ms` then, which only ever grows."""
        if value == self.value and now_ms - self.sent_ms < repeat_ms:
            return False
        self.value = value
        self.sent_ms = max(now_ms, self.sent_ms + 1)
        return True

    def end(self, now_ms: int) -> Iterator[TimeSeries]:
        time = stamp(max(now_ms, self.sent_ms + 1))
        return (TimeSeries(encoded + stale_marker(time), 1) for encoded in self.labels)


def _histogram(known: _Known, durations: Durations) -> Iterator[TimeSeries]:
    time = stamp(known.sent_ms)
    newest_ns = known.exemplar_ns
    running = 0
    for position, running in enumerate(accumulate(durations.counts)):
        encoded = known.labels[position] + sample(float(running), time)
        found = durations.exemplars.get(position)
        if found is not None and found.time_ns > known.exemplar_ns:
            encoded += exemplar(found.trace_id, found.seconds, found.time_ns // 1_000_000)
            newest_ns = max(newest_ns, found.time_ns)
        yield TimeSeries(encoded, 1)
    known.exemplar_ns = newest_ns
    yield TimeSeries(known.labels[-2] + sample(durations.seconds, time), 1)
    yield TimeSeries(known.labels[-1] + sample(float(running), time), 1)


def _histogram_labels(name: str, items: LabelItems) -> tuple[bytes, ...]:
    """Return the labels of all buckets, of the sum and of the count."""
    pairs = _pairs(f"{name}_bucket", items)
    # Labels must be sorted: the bound stands between these two.
    before = labels([pair for pair in pairs if pair[0] < "le"])
    after = labels([pair for pair in pairs if pair[0] > "le"])
    buckets = [before + bound + after for bound in _BOUNDS]
    return (*buckets, labels(_pairs(f"{name}_sum", items)), labels(_pairs(f"{name}_count", items)))


def _pairs(name: str, items: LabelItems) -> list[tuple[str, str]]:
    return sorted([("__name__", name), *items])
