"""Metrics of one process: the flusher's thread folds events into cumulative series."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from marshal import dumps as _exact_form
from math import inf, isfinite
from typing import Any

import msgspec

from rl_insight.recorder.attributes import AttributeEncoder
from rl_insight.recorder.context import step_of
from rl_insight.recorder.losses import MAX_NAME, Losses, safe_text, short_text
from rl_insight.recorder.recorder import COUNTER, GAUGE, HISTOGRAM, MetricEvent
from rl_insight.recorder.redaction import DROPPED
from rl_insight.schema.agent_loop import METRIC_PREFIX, STEP_LABEL
from rl_insight.schema.builder import BatchBuilder
from rl_insight.schema.histogram import bucket_code
from rl_insight.schema.json_values import utf8_form
from rl_insight.schema.names import OVERFLOW_LABEL, RESERVED_LABELS, label_name, metric_name
from rl_insight.schema.tables import NO_STEP

_MAX_KNOWN_KEYS = 100_000
_MAX_LABEL = 65_536
_PLAIN = (str, int, float, bool, type(None))

Key = tuple[Any, ...]
"""Kind, name, and the exact labels."""

_encode_labels = msgspec.json.Encoder(order="sorted").encode


class Cell(ABC):
    """One series: a metric name with one set of labels."""

    __slots__ = ("changed", "documentation", "kind", "label_step", "labels", "name", "step")

    def __init__(self, kind: str, name: str, labels: str, documentation: str, label_step: int | None) -> None:
        self.kind = kind
        self.name = name
        self.labels = labels
        self.documentation = documentation
        self.label_step = label_step
        self.step: int | None = None
        self.changed = False

    @abstractmethod
    def record(self, value: float, step: int | None, time_ns: int) -> None:
        """Fold in one event."""

    @abstractmethod
    def add_to(self, builder: BatchBuilder, now_ns: int) -> None:
        """Write the changes since the last call."""

    def _series(self, builder: BatchBuilder) -> int:
        return builder.add_series(self.name, self.kind, self.documentation, self.labels)


class CounterCell(Cell):
    """A total that only grows; the total is kept at each change of step, so it can be split by step."""

    __slots__ = ("past", "total")

    def __init__(self, *identity: Any) -> None:
        super().__init__(*identity)
        self.total = 0.0
        self.past: list[tuple[float, int | None]] = []

    def record(self, value: float, step: int | None, time_ns: int) -> None:
        """Add to the total."""
        del time_ns
        if step != self.step:
            if self.changed:
                self.past.append((self.total, self.step))
            self.step = step
        self.total += value

    def add_to(self, builder: BatchBuilder, now_ns: int) -> None:
        """Write the total, after the totals at the end of each earlier step."""
        series = self._series(builder)
        # One nanosecond apart: readers take differences in time order.
        totals = (*self.past, (self.total, self.step))
        for time_ns, (total, step) in enumerate(totals, now_ns - len(self.past)):
            builder.add_sample(series, time_ns=time_ns, value=total, step=step)
        self.past.clear()


class GaugeCell(Cell):
    """Every value, with its timestamp."""

    __slots__ = ("latest", "values")

    def __init__(self, *identity: Any) -> None:
        super().__init__(*identity)
        self.values: list[tuple[int, float, int | None]] = []
        self.latest: tuple[int, float, int | None] = (0, 0.0, None)

    def record(self, value: float, step: int | None, time_ns: int) -> None:
        """Keep one value."""
        self.latest = (time_ns, value, step)
        self.values.append(self.latest)

    def add_to(self, builder: BatchBuilder, now_ns: int) -> None:
        """Write the values since the last call, or the latest one again if there are none."""
        del now_ns
        series = self._series(builder)
        add = builder.samples.extend  # most samples are gauges
        for time_ns, value, step in self.values or (self.latest,):
            add((series, time_ns, value, NO_STEP if step is None else step))
        self.values.clear()


class HistogramCell(Cell):
    """A distribution since the start; see `schema.histogram` for its buckets."""

    __slots__ = ("buckets", "count", "maximum", "minimum", "past", "total")

    def __init__(self, *identity: Any) -> None:
        super().__init__(*identity)
        self.count = 0
        self.total = 0.0
        self.minimum = inf
        self.maximum = -inf
        self.buckets: dict[int, int] = {}
        self.past: list[tuple[int | None, int, float, float, float, dict[int, int]]] = []

    def record(self, value: float, step: int | None, time_ns: int) -> None:
        """Add one value."""
        del time_ns
        if step != self.step:
            if self.changed:
                self.past.append((self.step, self.count, self.total, self.minimum, self.maximum, dict(self.buckets)))
            self.step = step
        code = bucket_code(value)
        self.buckets[code] = self.buckets.get(code, 0) + 1
        self.count += 1
        self.total += value
        self.minimum = min(self.minimum, value)
        self.maximum = max(self.maximum, value)

    def add_to(self, builder: BatchBuilder, now_ns: int) -> None:
        """Write the distribution, after those at the end of each earlier step."""
        series = self._series(builder)
        latest = (self.step, self.count, self.total, self.minimum, self.maximum, self.buckets)
        states = enumerate((*self.past, latest), now_ns - len(self.past))
        for time_ns, (step, count, total, minimum, maximum, buckets) in states:
            builder.add_histogram(
                series,
                time_ns=time_ns,
                step=step,
                count=count,
                total=total,
                minimum=minimum,
                maximum=maximum,
                buckets=buckets,
            )
        self.past.clear()


_REFUSALS = {
    COUNTER: ("bad_amount", "metric_count", "a counter only grows. Use metric_gauge."),
    HISTOGRAM: ("not_finite", "metric_histogram", "histogram values must be finite."),
}
_CELLS: dict[str, type[Cell]] = {COUNTER: CounterCell, GAUGE: GaugeCell, HISTOGRAM: HistogramCell}


class MetricTable:
    """All series of a process, with the limits that keep them few and unambiguous."""

    def __init__(
        self, attributes: AttributeEncoder, losses: Losses, *, max_series: int, run_labels: Mapping[str, str]
    ) -> None:
        self._attributes = attributes
        self._losses = losses
        self._max_series = max_series
        self._run_labels = run_labels
        self._known: dict[Key | None, Cell] = {}
        """By exactly what the caller passed: the fast path."""
        self._cells: dict[tuple[str, str], Cell] = {}
        """By final name and labels."""
        self._kinds: dict[str, str] = {}
        self._series_count: dict[str, int] = {}
        self._changed: list[Cell] = []
        self.wall_offset_ns = 0
        """Converts monotonic time to wall-clock time."""

    def record_all(self, events: Iterable[MetricEvent], on_error: Callable[[], None]) -> None:
        """Fold in events; `on_error` is called from the exception handler if one of them raises."""
        # One loop with as few calls as possible: this is where a metric event costs most.
        known, changed, offset_ns = self._known, self._changed, self.wall_offset_ns
        for event in events:
            try:
                kind, name, value, labels = event.kind, event.name, event.value, event.labels
                try:
                    # For string labels, as nearly all are. `_find` handles others, as 1, 1.0 and True are equal keys.
                    cell = known.get((kind, name, *labels, *labels.values()))
                except Exception:  # noqa: BLE001  # a value that cannot be looked up
                    cell = None
                if cell is None:
                    cell = self._find(kind, name, labels, event.documentation)
                    known = self._known  # may have been replaced
                    if cell is None:
                        continue
                number = value if value.__class__ is float else _as_float(value)
                # Inlined: a call would take longer than the checks.
                if (kind == COUNTER and not 0.0 <= number < inf) or (kind == HISTOGRAM and not isfinite(number)):
                    self._refuse(kind, name, number)
                    continue
                step = cell.label_step if event.step is None else event.step
                if cell.__class__ is CounterCell and cell.changed and step == cell.step:
                    cell.total += number  # same as `record`, in half the time of a call
                    continue
                cell.record(number, step, event.time + offset_ns)
                if not cell.changed:
                    cell.changed = True
                    changed.append(cell)
            except Exception:  # noqa: BLE001  # one bad event must not lose the others
                on_error()

    def drain(self) -> Iterator[Cell]:
        """Yield the series that changed since the last call."""
        changed, self._changed = self._changed, []
        for cell in changed:
            cell.changed = False
            yield cell

    def mark_all_changed(self) -> None:
        """Send every series again after a batch was lost: cumulative values restore its contents."""
        self._changed = list(self._cells.values())
        for cell in self._changed:
            cell.changed = True

    def _refuse(self, kind: str, name: str, value: float) -> None:
        reason, call, why = _REFUSALS[kind]
        topic = short_text(name)
        self._losses.refuse("metrics", reason, f"{call}({topic!r}, {value!r}) was refused: {why}", topic=topic)

    def _find(self, kind: str, name: str, labels: dict[str, Any], documentation: str) -> Cell | None:
        """Return the cell of a metric that is new or has non-string labels; None if it is rejected."""
        key = _key(kind, name, labels)
        if key in self._known:
            return self._known[key]
        if not isinstance(name, str) or not name:
            self._losses.refuse(
                "metrics", "bad_name", f"a metric named {short_text(name)!r} was refused: names are non-empty strings."
            )
            return None
        name = short_text(name)
        final_name = self._final_name(name)
        first_kind = self._kinds.setdefault(final_name, kind)
        if first_kind != kind:
            self._losses.refuse(
                "metrics",
                "two_kinds",
                f"metric {final_name!r} is a {first_kind}: its use as a {kind} was refused. Give it another name.",
                topic=f"{final_name}/{kind}",
            )
            return None
        text_labels = self._final_labels(final_name, labels)
        cell = self._cells.get((final_name, _labels_text(text_labels)))
        if cell is None:
            cell = self._create(kind, final_name, text_labels, documentation, labels)
        elif documentation and not cell.documentation:
            cell.documentation = short_text(documentation)
        # The number of merged label sets is unbounded: they are not cached.
        if key is not None and OVERFLOW_LABEL not in cell.labels and len(self._known) < _MAX_KNOWN_KEYS:
            self._known[key] = cell
        return cell

    def _create(
        self, kind: str, name: str, text_labels: dict[str, str], documentation: str, labels: dict[str, Any]
    ) -> Cell:
        count = self._series_count.get(name, 0)
        if count >= self._max_series and name.startswith(METRIC_PREFIX):
            count = self._evict_past_steps(name, text_labels.get(STEP_LABEL, ""))
        elif count >= self._max_series and text_labels:
            self._losses.refuse(
                "series",
                "too_many",
                f"metric {name!r} has more than {self._max_series} label sets: further ones are merged into "
                f"{OVERFLOW_LABEL!r}. Drop labels with many values, or raise recorder.max_series_per_metric.",
                topic=name,
            )
            # Unbounded label names would be as bad as unbounded values.
            text_labels = dict.fromkeys(text_labels, OVERFLOW_LABEL) if count < 2 * self._max_series else {}
        text = _labels_text(text_labels)
        cell = self._cells.get((name, text))
        if cell is None:
            label_step = step_of(labels.get("step"))
            cell = self._cells[name, text] = _CELLS[kind](kind, name, text, short_text(documentation), label_step)
            self._series_count[name] = count + 1
        return cell

    def _evict_past_steps(self, name: str, step: str) -> int:
        """Evict the series of other steps to make room for those of a session; return how many are left.

        Every session adds such gauges, and dashboards read those of current steps, so they are never merged.
        """
        mark = _labels_text({STEP_LABEL: step})[1:-1]
        past = {key for key, cell in self._cells.items() if key[0] == name and mark not in cell.labels}
        forgotten = {id(self._cells.pop(key)) for key in past}
        self._known = {key: cell for key, cell in self._known.items() if id(cell) not in forgotten}
        self._series_count[name] -= len(past)
        return self._series_count[name]

    def _final_name(self, name: str) -> str:
        final = metric_name(name)
        if final != name:
            self._losses.warn_once(f"metric name {name}", f"metric {name!r} is recorded as {final!r}.")
        return final

    def _final_labels(self, metric: str, labels: dict[str, Any]) -> dict[str, str]:
        final: dict[str, str] = {}
        for given_name, value in labels.items():
            name = short_text(given_name)
            key = label_name(name)
            if key != name:
                self._losses.warn_once(f"label name {name}", f"label {name!r} is recorded as {key!r}.")
            if key in RESERVED_LABELS and not (key == "experiment_name" and metric.startswith(METRIC_PREFIX)):
                if self._run_labels.get(key) != str(value):
                    self._losses.refuse("labels", "reserved", f"label {key!r} is reserved: it was dropped.", topic=key)
                continue
            text = self._label_text(key, value)
            if text is not DROPPED:
                final[key] = text
        return final

    def _label_text(self, key: str, value: Any) -> Any:
        text = self._attributes.value(key, value if value.__class__ is str else short_text(value, _MAX_LABEL))
        return text if text is DROPPED or text.__class__ is str else safe_text(text)


def _key(kind: str, name: Any, labels: dict[str, Any]) -> Key | None:
    """Return the key under which a series is cached; None if it must not be cached."""
    texts = (name, *labels.values())
    for value in texts:
        # Other objects (tensors) and long strings must not be kept alive.
        if value.__class__ not in _PLAIN or (value.__class__ is str and len(value) > MAX_NAME):
            return None
    if all(value.__class__ is str for value in texts):
        return kind, name, *labels, *labels.values()
    return kind, name, _exact_form(labels, 2)  # distinguishes 1, 1.0 and True


def _as_float(value: float) -> float:
    """Return an integer as a float; infinity if it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf


def _labels_text(labels: dict[str, str]) -> str:
    try:
        return _encode_labels(labels).decode()
    except UnicodeEncodeError:  # lone surrogates
        return _encode_labels(utf8_form(labels)).decode()
