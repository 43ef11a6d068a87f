"""What all processes report, merged into one cumulative series for each metric, label set and run."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator
from math import inf
from threading import Lock
from typing import Any, NamedTuple, cast

import msgspec

from rl_insight.schema import Batch, Process
from rl_insight.schema.agent_loop import METRIC_PREFIX, STEP_LABEL
from rl_insight.schema.names import RESERVED_LABELS, MetricKind, label_name, metric_name

LabelItems = tuple[tuple[str, str], ...]


class Run(NamedTuple):
    """What identifies a run; any part may be empty."""

    project: str
    experiment_name: str
    run_id: str


class SeriesKey(NamedTuple):
    """What tells the series of one metric apart."""

    run: Run
    labels: LabelItems


class Distribution(msgspec.Struct, frozen=True):
    """A histogram series at one moment."""

    count: int
    sum: float
    minimum: float
    maximum: float
    buckets: dict[int, int]
    """Bucket code (see `rl_insight.schema.histogram`) to count."""


class Family(msgspec.Struct, frozen=True):
    """All series of one metric at one moment."""

    name: str
    """Without a namespace; a counter's without `_total`."""
    kind: MetricKind
    documentation: str
    values: list[tuple[SeriesKey, float]] = []
    """Counters and gauges."""
    distributions: list[tuple[SeriesKey, Distribution]] = []
    codes: list[int] = []
    """Every bucket any of the distributions has ever used, ascending."""


class SeriesTable:
    """Merges what processes report; safe to use from several threads.

    - Counters and histograms arrive as totals since their process started. A series is the sum over its processes of
      the largest total seen, so a repeated batch changes nothing, a lost one is made good by the next, and a late one
      is passed over. Of a gauge the value with the latest time stays, whoever set it.
    - A process that has ended keeps its part of every sum; `forget` frees what was needed to add to it.
    - One metric name may have any label sets. The first kind a name is used with wins, the other is refused.

    Refused rows are counted by reason: `kind` (the name has another kind), `name` (its exposed name is another
    metric's), `labels` (not a JSON object), `value` (a counter that is not a number), `limit` (too many series).

    Args:
        max_series: series kept, of all runs together.
        reserved: metric names that nobody may use.
        max_forgotten: processes of which it is remembered that they had been forgotten.
    """

    def __init__(
        self, *, max_series: int = 500_000, reserved: Iterable[str] = (), max_forgotten: int = 100_000
    ) -> None:
        self._lock = Lock()
        self._max_series = max_series
        self._max_forgotten = max_forgotten
        self._count = 0
        self._families: dict[str, _Family] = {}
        self._users: dict[str, _Family] = {}
        """By the name that users give."""
        self._owners: dict[str, _Family] = dict.fromkeys(reserved, _Family("", "gauge"))
        """By exposed name; the reserved ones belong to a family of their own."""
        self._processes: dict[str, _Contributor] = {}
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._refused: Counter[str] = Counter()

    def apply(self, batch: Batch) -> None:
        """Merge the samples and histograms of a batch."""
        if not len(batch.samples) and not len(batch.histograms):
            return
        with self._lock:
            contributor = self._contributor(batch.process)
            parts = [self._part(contributor, row) for row in _series_rows(batch)]
            self._apply_samples(batch, parts)
            self._apply_histograms(batch, parts)

    def forget(self, process_id: str) -> None:
        """Free what is kept about a process; what it contributed stays.

        Should it report again, its first totals count as known already: nothing is ever counted twice.
        """
        with self._lock:
            if self._processes.pop(process_id, None) is None:
                return
            self._forgotten[process_id] = None
            if len(self._forgotten) > self._max_forgotten:
                self._forgotten.popitem(last=False)

    def drop_run(self, run: Run) -> None:
        """Remove every series of a run."""
        with self._lock:
            for process_id in [name for name, kept in self._processes.items() if kept.run == run]:
                del self._processes[process_id]
            for family in list(self._families.values()):
                for key in [key for key, series in family.series.items() if series.run == run]:
                    del family.series[key]
                    self._count -= 1
                if not family.series:
                    self._remove_family(family)

    def families(self) -> Iterator[Family]:
        """Yield every metric with a copy of its series; the lock is held for one metric at a time."""
        with self._lock:
            families = list(self._families.values())
        for family in families:
            with self._lock:
                copy = family.copy()
            yield copy

    @property
    def refused(self) -> dict[str, int]:
        """Rows refused so far, by reason."""
        with self._lock:
            return dict(self._refused)

    @property
    def tracked_processes(self) -> int:
        """Processes of which the last totals are kept."""
        with self._lock:
            return len(self._processes)

    def __len__(self) -> int:
        return self._count

    def _contributor(self, process: Process) -> _Contributor:
        contributor = self._processes.get(process.process_id)
        if contributor is None:
            returning = process.process_id in self._forgotten
            run = Run(process.project, process.experiment_name, process.run_id)
            contributor = self._processes[process.process_id] = _Contributor(run, returning=returning)
        return contributor

    def _part(self, contributor: _Contributor, row: tuple[str, str, str, str]) -> _Part | str:
        """Return the process's part of a series, or why it is refused."""
        name, kind, labels, documentation = row
        part = contributor.parts.get((name, kind, labels))
        if part is None:
            part = self._new_part(contributor, name, kind, labels, documentation)
            contributor.parts[name, kind, labels] = part
        return part

    def _new_part(
        self, contributor: _Contributor, name: str, kind: str, labels: str, documentation: str
    ) -> _Part | str:
        if kind not in {"counter", "gauge", "histogram"}:
            return "kind"
        items = _label_items(labels, histogram=kind == "histogram")
        if items is None:
            return "labels"
        run = contributor.run
        if name.startswith(METRIC_PREFIX):
            run = run._replace(experiment_name=_experiment(labels) or run.experiment_name)
        # A colon is for recording rules: engines that are read as targets have some.
        family = self._family(metric_name(name).replace(":", "_"), cast("MetricKind", kind))
        if isinstance(family, str):
            return family
        key = SeriesKey(run, items)
        series = family.series.get(key)
        if series is None:
            if self._count >= self._max_series and not self._forget_past_steps(family, items):
                return "limit"
            series = family.series[key] = _Series(contributor.run)
            self._count += 1
        family.documentation = family.documentation or documentation.strip()
        return _Part(family, series, returning=contributor.returning)

    def _forget_past_steps(self, family: _Family, items: LabelItems) -> bool:
        """Make room for a session's gauge by those of other steps; returns whether there was any."""
        step = dict(items).get(STEP_LABEL)
        if not family.name.startswith(METRIC_PREFIX) or step is None:
            return False
        past = [key for key in family.series if (STEP_LABEL, step) not in key.labels]
        for key in past:
            del family.series[key]
        self._count -= len(past)
        return bool(past)

    def _family(self, name: str, kind: MetricKind) -> _Family | str:
        family_name = name.removesuffix("_total") if kind == "counter" else name
        exposed_names = _exposed_names(family_name, kind)
        family = self._families.get(exposed_names[0])
        if family is None or (family.name, family.kind) != (family_name, kind):
            family = None
        if self._users.get(name, family) is not family:
            return "kind"
        if any(self._owners.get(exposed, family) is not family for exposed in exposed_names):
            return "name"
        if family is None:
            family = self._families[exposed_names[0]] = _Family(family_name, kind)
            self._owners.update(dict.fromkeys(exposed_names, family))
        self._users[name] = family
        return family

    def _remove_family(self, family: _Family) -> None:
        del self._families[_exposed_names(family.name, family.kind)[0]]
        for names in (self._owners, self._users):
            for name in [name for name, owner in names.items() if owner is family]:
                del names[name]

    def _apply_samples(self, batch: Batch, parts: list[_Part | str]) -> None:
        samples = batch.samples
        rows = zip(samples.column("series"), samples.column("time_ns"), samples.column("value"), strict=True)
        for position, time_ns, value in rows:
            part = parts[position]
            if isinstance(part, str):
                self._refused[part] += 1
            elif part.family.kind == "counter":
                if value != value:  # noqa: PLR0124 -- the quickest test for NaN
                    self._refused["value"] += 1
                else:
                    part.add_total(value)
            elif part.family.kind == "gauge":
                part.set_value(value, time_ns)
            else:
                self._refused["kind"] += 1

    def _apply_histograms(self, batch: Batch, parts: list[_Part | str]) -> None:
        table = batch.histograms
        names = ("series", "count", "sum", "min", "max", "buckets")
        codes, counts = batch.buckets.column("code").tolist(), batch.buckets.column("count").tolist()
        start = 0
        for position, count, total, minimum, maximum, length in zip(*map(table.column, names), strict=True):
            part = parts[position]
            end = start + length
            if isinstance(part, str):
                self._refused[part] += 1
            elif part.family.kind != "histogram":
                self._refused["kind"] += 1
            else:
                buckets = dict(zip(codes[start:end], counts[start:end], strict=True))
                part.add_distribution(count, total, minimum, maximum, buckets)
            start = end


class _Family:
    __slots__ = ("codes", "documentation", "kind", "name", "series")

    def __init__(self, name: str, kind: MetricKind) -> None:
        self.name = name
        self.kind = kind
        self.documentation = ""
        self.series: dict[SeriesKey, _Series] = {}
        self.codes: set[int] = set()

    def copy(self) -> Family:
        if self.kind != "histogram":
            is_gauge = self.kind == "gauge"
            set_series = [item for item in self.series.items() if not (is_gauge and item[1].time_ns is None)]
            values = [(key, series.value) for key, series in set_series]
            return Family(self.name, self.kind, self.documentation, values)
        distributions = [(key, series.distribution()) for key, series in self.series.items()]
        return Family(self.name, self.kind, self.documentation, [], distributions, sorted(self.codes))


class _Series:
    """The merged state of a series; `value` is also a distribution's sum."""

    __slots__ = ("buckets", "count", "maximum", "minimum", "run", "time_ns", "value")

    def __init__(self, run: Run) -> None:
        self.run = run
        self.value = 0.0
        self.time_ns: int | None = None
        self.count = 0
        self.minimum = inf
        self.maximum = -inf
        self.buckets: dict[int, int] = {}

    def distribution(self) -> Distribution:
        return Distribution(self.count, self.value, self.minimum, self.maximum, self.buckets.copy())


class _Contributor:
    """What is kept about one live process."""

    __slots__ = ("parts", "returning", "run")

    def __init__(self, run: Run, *, returning: bool) -> None:
        self.run = run
        self.returning = returning
        self.parts: dict[tuple[str, str, str], _Part | str] = {}


class _Part:
    """One process's part of one series: the totals that have been added to it so far."""

    __slots__ = ("buckets", "count", "family", "is_baseline", "series", "total")

    def __init__(self, family: _Family, series: _Series, *, returning: bool) -> None:
        self.family = family
        self.series = series
        self.total = 0.0
        self.count = 0
        self.buckets: dict[int, int] = {}
        self.is_baseline = returning

    def add_total(self, total: float) -> None:
        if total <= self.total:
            return
        if not self.is_baseline:
            self.series.value += total - self.total
        self.is_baseline = False
        self.total = total

    def set_value(self, value: float, time_ns: int) -> None:
        series = self.series
        if series.time_ns is None or time_ns >= series.time_ns:
            series.value, series.time_ns = value, time_ns

    def add_distribution(
        self, count: int, total: float, minimum: float, maximum: float, buckets: dict[int, int]
    ) -> None:
        if count <= self.count:
            return
        if not self.is_baseline:
            self._add_difference(count, total, buckets)
            self.series.minimum = min(self.series.minimum, minimum)
            self.series.maximum = max(self.series.maximum, maximum)
        self.is_baseline = False
        self.count, self.total, self.buckets = count, total, buckets

    def _add_difference(self, count: int, total: float, buckets: dict[int, int]) -> None:
        series, codes, known = self.series, self.family.codes, self.buckets
        series.count += count - self.count
        if total != self.total:  # also where both are the same infinity, whose difference is not a number
            series.value += total - self.total
        for code, number in buckets.items():
            more = number - known.get(code, 0)
            if more > 0:
                series.buckets[code] = series.buckets.get(code, 0) + more
                codes.add(code)


def _exposed_names(name: str, kind: MetricKind) -> list[str]:
    """Return the names a metric takes up among the exposed ones, its own first."""
    if kind == "counter":
        return [f"{name}_total"]
    if kind == "gauge":
        return [name]
    return [name, f"{name}_bucket", f"{name}_sum", f"{name}_count"]


def _series_rows(batch: Batch) -> Iterator[tuple[str, str, str, str]]:
    text = batch.text
    columns = [batch.series.column(name) for name in ("name", "kind", "labels", "documentation")]
    for name, kind, labels, documentation in zip(*columns, strict=True):
        yield text(name) or "", text(kind) or "", text(labels) or "", text(documentation) or ""


def _experiment(labels: str) -> str:
    """Return the experiment that a series names itself, where its metric may."""
    try:
        return str(msgspec.json.decode(labels).get("experiment_name", ""))
    except (msgspec.DecodeError, RecursionError, AttributeError):
        return ""


def _label_items(text: str, *, histogram: bool) -> LabelItems | None:
    """Return labels as Prometheus takes them; None when the text is no JSON object.

    An empty label is the same as none; the reserved labels are the run's own.
    """
    if not text:
        return ()
    try:
        labels: Any = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(labels, dict):
        return None
    items: dict[str, str] = {}
    for key, value in labels.items():
        name = label_name(key)
        if histogram and name == "le":
            name = "_le"
        if name not in RESERVED_LABELS and value is not None and value != "":
            items[name] = value if isinstance(value, str) else str(value)
    return tuple(sorted(items.items()))
