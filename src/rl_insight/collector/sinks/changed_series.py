"""The series that have changed since they were last looked at: what a sink that pushes metrics has to send."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from time import monotonic

from rl_insight.collector.series import Run, SeriesKey, SeriesTable, _Family, _label_items, _Part, _Series, _series_rows
from rl_insight.schema import Batch

_MAX_PROCESSES = 10_000
_FORGET_AFTER_S = 3600.0
_NS_PER_MS = 1_000_000


class TrackedSeries:
    """One series of the table, and what its sender has to remember about it."""

    __slots__ = ("encoded", "family", "heard_ms", "key", "last_ms", "points", "series")

    def __init__(self, family: _Family, key: SeriesKey, series: _Series) -> None:
        self.family = family
        self.key = key
        self.series = series
        self.points: list[tuple[int, float]] = []
        """A gauge's values, with their times in milliseconds, that are still to be sent."""
        self.heard_ms = 0
        """When a gauge's last value arrived, by our own clock."""
        self.last_ms = 0
        """The time of the last value sent."""
        self.encoded: tuple[bytes, ...] = ()
        """The sender's own: the labels as it writes them."""


class ChangedSeries:
    """Merges batches as `SeriesTable` does, and knows which series they changed; for one thread.

    Args:
        reserved: metric names that nobody may use.
        max_series: series kept, of all runs together.
        clock: seconds that only ever grow.
    """

    def __init__(
        self, *, reserved: Iterable[str] = (), max_series: int = 500_000, clock: Callable[[], float] = monotonic
    ) -> None:
        self._table = SeriesTable(max_series=max_series, reserved=reserved)
        self._clock = clock
        self._tracked: dict[_Series, TrackedSeries] = {}
        self._changed: dict[TrackedSeries, None] = {}
        self._processes: OrderedDict[str, float] = OrderedDict()
        """When each was heard of; those heard of last stand at the end."""
        self._runs: dict[Run, float] = {}
        self.pending_points = 0
        """Values of gauges that wait."""

    def apply(self, batch: Batch, now_ms: int) -> None:
        """Merge the metrics of a batch that arrived at `now_ms`."""
        self._note(batch)
        if not len(batch.samples) and not len(batch.histograms):
            return
        self._table.apply(batch)
        tracked = self._tracked_rows(batch)
        samples = batch.samples
        rows = zip(samples.column("series"), samples.column("time_ns"), samples.column("value"), strict=True)
        for position, time_ns, value in rows:
            found = tracked[position]
            if found is None:
                continue
            self._changed[found] = None
            if found.family.kind == "gauge":
                found.points.append((time_ns // _NS_PER_MS, value))
                found.heard_ms = now_ms
                self.pending_points += 1
        for position in batch.histograms.column("series"):
            found = tracked[position]
            if found is not None:
                self._changed[found] = None

    def take(self) -> list[TrackedSeries]:
        """Return the series that have changed since the last call."""
        changed, self._changed = list(self._changed), {}
        self.pending_points = 0
        return changed

    def of_family(self, family: _Family) -> list[TrackedSeries]:
        """Return every series of a metric."""
        return [self._tracked[series] for series in family.series.values()]

    def live(self, within_s: float) -> Collection[TrackedSeries]:
        """Return every series of the runs that were heard of within the last seconds."""
        since = self._clock() - within_s
        runs = {run for run, heard in self._runs.items() if heard >= since}
        return [tracked for tracked in self._tracked.values() if tracked.key.run in runs]

    def __len__(self) -> int:
        return len(self._table)

    @property
    def refused(self) -> dict[str, int]:
        """Rows refused so far, by reason."""
        return self._table.refused

    def _note(self, batch: Batch) -> None:
        process, now = batch.process, self._clock()
        self._runs[_run(batch)] = now
        self._processes[process.process_id] = now
        self._processes.move_to_end(process.process_id)
        while True:
            oldest, heard = next(iter(self._processes.items()))
            if heard > now - _FORGET_AFTER_S and len(self._processes) <= _MAX_PROCESSES:
                break
            del self._processes[oldest]
            self._table.forget(oldest)

    def _tracked_rows(self, batch: Batch) -> list[TrackedSeries | None]:
        """Return the series of a batch by position; None for those that the table refused."""
        parts = self._table._processes[batch.process.process_id].parts
        run = _run(batch)
        found: list[TrackedSeries | None] = []
        for name, kind, labels, _ in _series_rows(batch):
            part = parts[name, kind, labels]
            found.append(self._track(part, run, labels) if isinstance(part, _Part) else None)
        return found

    def _track(self, part: _Part, run: Run, labels: str) -> TrackedSeries:
        tracked = self._tracked.get(part.series)
        if tracked is None:
            items = _label_items(labels, histogram=part.family.kind == "histogram") or ()
            tracked = TrackedSeries(part.family, SeriesKey(run, items), part.series)
            self._tracked[part.series] = tracked
        return tracked


def _run(batch: Batch) -> Run:
    process = batch.process
    return Run(process.project, process.experiment_name, process.run_id)
