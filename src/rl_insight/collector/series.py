"""Merges the metrics of all processes into one cumulative series per metric, label set and run."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import Any

from rl_insight.collector.merging import NO_BUCKETS, Contribution, Contributor, MergedFamily, MergedSeries
from rl_insight.collector.run_activity import FORGET_AFTER_S, GRACE_S, SWEEP_EVERY_NS, RunActivity, RunKey
from rl_insight.metrics import GAUGE, KINDS, Family, LabelItems, MetricKind, Point
from rl_insight.metrics.families import batch_distributions
from rl_insight.schema import Batch
from rl_insight.schema.agent_loop import METRIC_PREFIX, STEP_LABEL
from rl_insight.schema.json_values import json_object
from rl_insight.schema.names import RESERVED_LABELS, label_name, metric_name

_RESERVED = MergedFamily("", GAUGE)
"""Owns the reserved names."""


class SeriesTable:
    """Merges metrics; thread-safe.

    - Counters and histograms arrive as totals since their process started. A series is the sum over its processes of
      the largest total seen, so duplicates change nothing, the next batch makes up for a lost one, and late batches are
      ignored. A gauge keeps the value with the latest timestamp, from any process.
    - The total of an ended process stays in every sum; `forget` frees the state needed to add to it.
    - The series of a run are removed when the run has ended (see `RunActivity`) or is deleted.
    - A metric name can have any label sets. The first kind used with a name wins; other kinds are refused.

    Refused rows are counted by reason: `kind` (the name has another kind), `name` (its exposed name is another
    metric's), `labels` (not a JSON object), `value` (a NaN counter), `limit` (too many series).

    Args:
        max_series: the limit for all runs together.
        reserved: exposed names that recorded metrics cannot use.
        max_forgotten: ended processes that are remembered, so that none is counted twice.
        forget_after_s: after this silence, a process is forgotten.
        grace_s: how long the series of an ended run stay.
        clock: a monotonic clock in nanoseconds.
    """

    def __init__(
        self,
        *,
        max_series: int = 500_000,
        reserved: Iterable[str] = (),
        max_forgotten: int = 100_000,
        forget_after_s: float = FORGET_AFTER_S,
        grace_s: float = GRACE_S,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._lock = Lock()
        self._clock = clock
        self._activity = RunActivity(self._forget, self._drop, forget_after_s=forget_after_s, grace_s=grace_s)
        self._max_series = max_series
        self._max_forgotten = max_forgotten
        self._count = 0
        self._users: dict[str, MergedFamily] = {}
        """By recorded name."""
        self._owners: dict[str, MergedFamily] = dict.fromkeys(reserved, _RESERVED)
        """By exposed name."""
        self._processes: dict[str, Contributor] = {}
        self._forgotten: OrderedDict[str, RunKey] = OrderedDict()
        self._refused: Counter[str] = Counter()
        self._followers: list[SeriesChanges] = []

    def apply(self, *batches: Batch) -> None:
        """Merge the samples and histograms of batches."""
        with self._lock:
            now_ns = self._clock()
            runs = [self._activity.note(batch.process, now_ns) for batch in batches]
            self._activity.sweep(now_ns, SWEEP_EVERY_NS)
            for batch, run in zip(batches, runs, strict=True):
                if batch.samples.series or batch.histograms.series:
                    self._apply(batch, self._contributor(batch.process.process_id, run))

    def _apply(self, batch: Batch, contributor: Contributor) -> None:
        series, texts = batch.series, ["", *batch.strings]
        known = contributor.parts.get
        parts: list[Contribution | str] = []
        columns = [series.column(name).tolist() for name in ("name", "kind", "labels")]
        for row, (name, kind, labels) in enumerate(zip(*columns, strict=True)):
            key = (texts[name], texts[kind], texts[labels])
            part = known(key)
            if part is None:
                documentation = texts[series.column("documentation")[row]]
                part = contributor.parts[key] = self._new_part(contributor, *key, documentation)
            parts.append(part)
        if batch.samples.series:
            self._apply_samples(batch, parts)
        if batch.histograms.series:
            self._apply_histograms(batch, parts)

    def forget(self, process_id: str) -> None:
        """Free the state of an ended process; its contribution stays.

        If it reports again, its first totals count as already known: nothing is ever counted twice.
        """
        with self._lock:
            self._activity.end(process_id)
            self._forget(process_id)

    def drop_run(self, run_id: str) -> None:
        """Remove every series of a deleted run."""
        with self._lock:
            for run in self._activity.drop(run_id):
                self._drop(run)

    def families(self, *, by_role: bool = False) -> Iterator[Family]:
        """Yield every metric with a copy of its series, or with one per role; locks one metric at a time."""
        with self._lock:
            self._activity.sweep(self._clock())
            families = dict.fromkeys(self._owners.values())
        for family in families:
            with self._lock:
                copy = family.copy_by_role() if by_role else family.copy(family.series.values())
            if copy.points:
                yield copy

    def follow(self, max_points: int = 100_000) -> SeriesChanges:
        """Start tracking changed series; past `max_points` pending gauge values, only the latest of each is kept."""
        with self._lock:
            self._followers.append(SeriesChanges(self._lock, max_points))
            return self._followers[-1]

    @property
    def refused(self) -> dict[str, int]:
        """Rows refused so far, by reason."""
        with self._lock:
            return dict(self._refused)

    def __len__(self) -> int:
        return self._count

    def _forget(self, process_id: str) -> None:
        contributor = self._processes.pop(process_id, None)
        if contributor is None:
            return
        self._forgotten[process_id] = contributor.run
        if len(self._forgotten) > self._max_forgotten:
            self._forgotten.popitem(last=False)

    def _drop(self, run: RunKey) -> None:
        # Nothing of the run remains that could be counted twice: if it continues, its totals count in full.
        for known in (self._forgotten, {name: kept.run for name, kept in self._processes.items()}):
            for process_id in [name for name, of_run in known.items() if of_run == run]:
                self._forgotten.pop(process_id, None)
                self._processes.pop(process_id, None)
        for family in dict.fromkeys(self._owners.values()):
            for labels in [labels for labels, series in family.series.items() if series.run == run]:
                del family.series[labels]
                self._count -= 1
            if not family.series and family is not _RESERVED:
                self._remove_family(family)
        for contributor in self._processes.values():
            contributor.forget_refusals()

    def _contributor(self, process_id: str, run: RunKey) -> Contributor:
        contributor = self._processes.get(process_id)
        if contributor is None:
            contributor = self._processes[process_id] = Contributor(run, process_id in self._forgotten)
        return contributor

    def _new_part(
        self, contributor: Contributor, name: str, kind_name: str, labels: str, documentation: str
    ) -> Contribution | str:
        """Return the process's share of a new series, or the reason why it is refused."""
        kind = KINDS.get(kind_name)
        if kind is None:
            return "kind"
        given = json_object(labels or "{}")
        if given is None:
            return "labels"
        run = contributor.run
        if name.startswith(METRIC_PREFIX) and (experiment := given.get("experiment_name")):
            run = run._replace(experiment_name=str(experiment))
        # Colons are reserved for recording rules, but some scraped engines use them.
        family = self._family(metric_name(name).replace(":", "_"), kind)
        if isinstance(family, str):
            return family
        items = _label_items(given, is_distribution=kind.is_distribution) + run.labels
        series = family.series.get(items)
        if series is None:
            if self._count >= self._max_series and not self._forget_past_steps(family, items):
                if not family.series:
                    self._remove_family(family)
                return "limit"
            series = family.add_series(contributor.run, items)
            self._count += 1
        family.documentation = family.documentation or documentation.strip()
        return Contribution(series, contributor.is_returning, NO_BUCKETS)

    def _forget_past_steps(self, family: MergedFamily, items: LabelItems) -> bool:
        """Make room for a session's gauge by removing those of other steps; return whether there were any."""
        step = dict(items).get(STEP_LABEL)
        if not family.name.startswith(METRIC_PREFIX) or step is None:
            return False
        past = [labels for labels in family.series if (STEP_LABEL, step) not in labels]
        for labels in past:
            del family.series[labels]
        self._count -= len(past)
        return bool(past)

    def _family(self, name: str, kind: MetricKind) -> MergedFamily | str:
        family_name = kind.base_name(name)
        exposed_names = kind.exposed_names(family_name)
        family = self._owners.get(exposed_names[0])
        if family is None or (family.name, family.kind) != (family_name, kind):
            family = None
        if self._users.get(name, family) is not family:
            return "kind"
        if any(self._owners.get(exposed, family) is not family for exposed in exposed_names):
            return "name"
        if family is None:
            family = MergedFamily(family_name, kind)
            self._owners.update(dict.fromkeys(exposed_names, family))
        self._users[name] = family
        return family

    def _remove_family(self, family: MergedFamily) -> None:
        for names in (self._owners, self._users):
            for name in [name for name, owner in names.items() if owner is family]:
                del names[name]
        for follower in self._followers:
            follower.drop(family)

    def _apply_samples(self, batch: Batch, parts: list[Contribution | str]) -> None:
        columns = [batch.samples.column(name).tolist() for name in ("series", "time_ns", "value")]
        for position, time_ns, value in zip(*columns, strict=True):
            part = parts[position]
            if isinstance(part, str):
                self._refused[part] += 1
                continue
            series = part.series
            kind = series.family.kind
            if kind.is_distribution:
                self._refused["kind"] += 1
                continue
            if not kind.is_cumulative:
                series.set_value(value, time_ns)
            elif value == value:  # noqa: PLR0124 -- the fastest test for NaN
                part.add_total(value)
            else:
                self._refused["value"] += 1
                continue
            for follower in self._followers:
                follower.note(series, value, time_ns)

    def _apply_histograms(self, batch: Batch, parts: list[Contribution | str]) -> None:
        for position, time_ns, distribution in batch_distributions(batch):
            part = parts[position]
            if isinstance(part, str):
                self._refused[part] += 1
            elif not part.series.family.kind.is_distribution:
                self._refused["kind"] += 1
            else:
                part.add_distribution(distribution)
                for follower in self._followers:
                    follower.note(part.series, 0.0, time_ns)


class SeriesChanges:
    """The series that changed since the last `take`; created by `SeriesTable.follow`."""

    def __init__(self, lock: Lock, max_points: int) -> None:
        self._lock = lock
        self._max_points = max_points
        self._changed: dict[MergedSeries, list[Point]] = {}
        """With pending gauge values."""
        self._codes: dict[MergedFamily, int] = {}
        """How many buckets of a histogram have been returned."""
        self.pending_points = 0
        """Pending gauge values."""

    def note(self, series: MergedSeries, value: float, time_ns: int) -> None:
        """Record a change; called by the table with the lock held."""
        points = self._changed.setdefault(series, [])
        if not series.family.kind.is_cumulative and self.pending_points < self._max_points:
            points.append(Point(series.labels, value, time_ns))
            self.pending_points += 1

    def drop(self, family: MergedFamily) -> None:
        """Forget a metric; called by the table with the lock held."""
        self._codes.pop(family, None)

    def take(self) -> list[Family]:
        """Return the changes since the last call.

        A gauge has a point per value. A histogram with a new bucket is returned with all its series: sums over them
        would be wrong unless all have the same bounds.
        """
        with self._lock:
            changed, self._changed, self.pending_points = self._changed, {}, 0
            found: dict[MergedFamily, list[Point]] = {}
            for series, points in changed.items():
                if series.family.series.get(series.labels) is series:
                    found.setdefault(series.family, []).extend(points or [series.point()])
            return [self._copy(family, points) for family, points in found.items()]

    def _copy(self, family: MergedFamily, points: list[Point]) -> Family:
        if self._codes.get(family, 0) == len(family.codes):
            return family.copy(points=points)
        self._codes[family] = len(family.codes)
        return family.copy(family.series.values())


def _label_items(labels: dict[str, Any], *, is_distribution: bool) -> LabelItems:
    """Return labels as Prometheus accepts them, without empty ones and without those that belong to the run."""
    items: dict[str, str] = {}
    for key, value in labels.items():
        name = label_name(key)
        if is_distribution and name == "le":
            name = "_le"
        if name not in RESERVED_LABELS and value is not None and value != "":
            items[name] = value if isinstance(value, str) else str(value)
    return tuple(sorted(items.items()))
