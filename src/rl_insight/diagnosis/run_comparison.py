"""Compares two runs over the finished steps that both have: times, metrics, configuration, and a summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Final, Literal, NamedTuple

import msgspec

from rl_insight.metrics.canonical import Quantity, quantity_metrics
from rl_insight.store.queries import (
    Breakdown,
    ConfigDifference,
    Cursor,
    Scope,
    Step,
    StepMetric,
    breakdown,
    config_differences,
    hotspots,
    run_config,
    step_metrics,
    steps,
    summary,
)
from rl_insight.store.queries.steps import MAX_STEPS
from rl_insight.words import number_text, seconds_text

STEP: Final = "step"
IDLE: Final = "idle"
_NOTABLE: Final = 0.05
"""Smaller relative changes are not mentioned."""
_NAMED_PHASES: Final = 2
_NAMED_KEYS: Final = 3
TimeKind = Literal["step", "phase", "idle", "span"]
_NAMED_QUANTITIES: Final[tuple[Quantity, ...]] = ("reward", "throughput")


class Pair(msgspec.Struct, frozen=True):
    """A quantity of both runs: its mean over the common steps."""

    name: str
    first: float
    second: float

    @property
    def change(self) -> float | None:
        """The relative change from the first to the second; None where the first is zero or one is not finite."""
        if not self.first or not isfinite(self.first) or not isfinite(self.second):
            return None
        return (self.second - self.first) / abs(self.first)


class WallTime(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table of times: how long something took in each run, in seconds; None if a run does not have it.

    `step`, `phase` and `idle` are the comparison's `times`. A `span` is any other name: how long at least one span of
    that name was running, per step, from the first to the last common step.
    """

    name: str
    kind: TimeKind
    first_s: float | None
    second_s: float | None
    difference_s: float
    """The additional time of the second run; a run that does not have it takes no time."""
    ratio: float | None
    """The second divided by the first; None if one of them is missing or the first is 0."""
    first_p95_s: float | None
    """The 95th percentile of the durations of its spans."""
    second_p95_s: float | None


class RunComparison(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two runs."""

    first: str
    second: str
    sentence: str
    """The most important differences, in words."""
    steps: int
    """The number of finished steps that both have."""
    first_step: int | None
    last_step: int | None
    times: list[Pair]
    """Seconds of an average step, of its phases on an average lane of the leading role, and of its idle time."""
    wall_times: list[WallTime]
    """The times and all other spans, the step first, then the largest difference."""
    is_per_step: bool
    """Whether `wall_times` are per step: over the common steps, or over each run's own if there are none. If a run has
    no finished steps, they are totals of the entire runs."""
    metrics: list[Pair]
    """Gauges of both, largest relative change first."""
    config: list[ConfigDifference]


def compare_runs(first: Cursor, second: Cursor) -> RunComparison:
    """Return the differences between two runs."""
    names = (summary(first).run_id, summary(second).run_id)
    config = config_differences(run_config(first), run_config(second))
    finished = (_finished(first), _finished(second))
    common = {*finished[0]} & {*finished[1]}
    newest = max(common, default=0)
    common = {step for step in common if step > newest - MAX_STEPS}
    times: list[Pair] = []
    metrics: list[Pair] = []
    if common:
        low, high = min(common), max(common)
        phases = [_phase_seconds(breakdown(cursor, low, high), common) for cursor in (first, second)]
        every = dict.fromkeys([*phases[0], *phases[1]], 0.0)  # a phase that a run does not have takes no time
        step = Pair(STEP, *(sum(_seconds(one[step]) for step in common) / len(common) for one in finished))
        times = [step, *_pairs(every | phases[0], every | phases[1])]
        metrics = _pairs(*(_means(step_metrics(cursor, low, high), common) for cursor in (first, second)))
    without_steps = ["They have no finished steps in common", *_config_words(config)]
    is_per_step = all(finished)
    spans = [
        _span_times(
            cursor, [one for one in own.values() if not common or low <= one.step <= high] if is_per_step else []
        )
        for cursor, own in zip((first, second), finished, strict=True)
    ]
    return RunComparison(
        first=names[0],
        second=names[1],
        sentence=sentence_of(times, metrics, config) if common else _joined(without_steps),
        steps=len(common),
        first_step=min(common, default=None),
        last_step=max(common, default=None),
        times=times,
        wall_times=_wall_times(times, spans[0], spans[1]),
        is_per_step=is_per_step,
        metrics=metrics,
        config=config,
    )


def _finished(cursor: Cursor) -> dict[int, Step]:
    return {one.step: one for one in steps(cursor, MAX_STEPS) if one.end_ns is not None}


def _seconds(step: Step) -> float:
    return ((step.end_ns or step.start_ns) - step.start_ns) / 1e9


class _SpanTime(NamedTuple):
    wall_s: float
    p95_s: float


def _span_times(cursor: Cursor, within: Sequence[Step]) -> dict[str, _SpanTime]:
    """Return the wall time of each span name, by step, during some finished steps; without any, of the entire run."""
    scope = None
    if within:
        ends = (one.end_ns for one in within if one.end_ns is not None)
        start_ns = min(one.start_ns for one in within)
        scope = Scope(start_ns=start_ns, end_ns=max(start_ns + 1, *ends))
    divisor = max(1, len(within)) * 1e9
    spots = hotspots(cursor, scope)
    return {spot.name: _SpanTime(spot.wall_ns / divisor, spot.p95_ns / 1e9) for spot in spots if spot.name is not None}


def _wall_times(
    times: Sequence[Pair], first: Mapping[str, _SpanTime], second: Mapping[str, _SpanTime]
) -> list[WallTime]:
    """Return the table of times; a phase keeps its time from `times`, so that the table agrees with the sentence."""
    rows = [_wall_time(STEP, pair.name, pair.first, pair.second) for pair in times[:1]]
    rows += [_wall_time(IDLE, pair.name, pair.first, pair.second) for pair in times[1:] if pair.name == IDLE]
    phases = {pair.name: pair for pair in times[1:] if pair.name != IDLE}
    for name in {*first, *second, *phases}:
        one, other, pair = first.get(name), second.get(name), phases.get(name)
        p95 = one and one.p95_s, other and other.p95_s
        if pair is not None:
            rows.append(_wall_time("phase", name, pair.first, pair.second, *p95))
        else:
            rows.append(_wall_time("span", name, one and one.wall_s, other and other.wall_s, *p95))
    return sorted(rows, key=lambda row: (row.kind != STEP, -abs(row.difference_s), row.name))


def _wall_time(
    kind: TimeKind,
    name: str,
    first_s: float | None,
    second_s: float | None,
    first_p95_s: float | None = None,
    second_p95_s: float | None = None,
) -> WallTime:
    return WallTime(
        name=name,
        kind=kind,
        first_s=first_s,
        second_s=second_s,
        difference_s=(second_s or 0.0) - (first_s or 0.0),
        ratio=second_s / first_s if first_s and second_s is not None else None,
        first_p95_s=first_p95_s,
        second_p95_s=second_p95_s,
    )


def _phase_seconds(found: Breakdown, common: set[int]) -> dict[str, float]:
    """Return the mean seconds per step of each phase, and of idle time."""
    chosen = [step for step in found.steps if step.step in common]
    totals: dict[str, float] = {}
    for step in chosen:
        parts = {IDLE: step.idle_ns} | {phase.name: phase.wall_ns for phase in step.phases}
        for name, wall_ns in parts.items():
            totals[name] = totals.get(name, 0.0) + wall_ns / 1e9
    return {name: total / len(chosen) for name, total in totals.items()}


def _means(rows: Sequence[StepMetric], common: set[int]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for row in rows:
        if row.step in common:
            values.setdefault(row.name, []).append(float(row.average))
    return {name: sum(some) / len(some) for name, some in values.items()}


def _pairs(one: Mapping[str, float], other: Mapping[str, float]) -> list[Pair]:
    pairs = [Pair(name, one[name], other[name]) for name in one if name in other]
    return sorted(pairs, key=lambda pair: (-abs(pair.change or 0.0), pair.name))


def sentence_of(times: Sequence[Pair], metrics: Sequence[Pair], config: Sequence[ConfigDifference]) -> str:
    """Return the differences of the second run in one sentence.

    >>> times = [Pair("step", 20.0, 25.0), Pair("generate", 12.0, 16.5), Pair("update", 6.0, 6.1)]
    >>> sentence_of(times, [], [])
    'Steps take 25 s instead of 20 s (+25%), mostly because of generate (+4.5 s).'
    >>> sentence_of([], [Pair("reward_mean", 0.5, 0.4)], [])
    'Reward_mean is 0.4 instead of 0.5 (-20%).'
    """
    parts = [*_time_words(times), *_metric_words(metrics), *_config_words(config)]
    return _joined(parts or ["They hardly differ: step time, reward and throughput are within 5% of each other"])


def _time_words(times: Sequence[Pair]) -> list[str]:
    step = next((pair for pair in times if pair.name == STEP), None)
    if step is None or step.change is None:
        return []
    if abs(step.change) < _NOTABLE:
        return [f"Steps take about the same time, {seconds_text(step.second)}"]
    total = step.second - step.first
    # Phases that changed in the same direction as the step, by a sizable part of its change.
    causes = sorted(
        (pair for pair in times if pair.name != STEP and (pair.second - pair.first) / total >= 0.2),
        key=lambda pair: -abs(pair.second - pair.first),
    )[:_NAMED_PHASES]
    sign = "+" if total > 0 else "-"
    words = " and ".join(f"{pair.name} ({sign}{seconds_text(abs(pair.second - pair.first))})" for pair in causes)
    because = f", mostly because of {words}" if causes else ""
    return [
        f"Steps take {seconds_text(step.second)} instead of {seconds_text(step.first)} ({step.change:+.0%}){because}"
    ]


def _metric_words(metrics: Sequence[Pair]) -> list[str]:
    by_name = {pair.name: pair for pair in metrics}
    shown = quantity_metrics(by_name)
    chosen = [by_name.get(shown.get(quantity, "")) for quantity in _NAMED_QUANTITIES]
    return [
        f"{pair.name} is {number_text(pair.second)} instead of {number_text(pair.first)} ({pair.change:+.0%})"
        for pair in chosen
        if pair is not None and pair.change is not None and abs(pair.change) >= _NOTABLE
    ]


def _config_words(config: Sequence[ConfigDifference]) -> list[str]:
    if not config:
        return []
    keys = ", ".join(one.key for one in config[:_NAMED_KEYS])
    more = f" and {len(config) - _NAMED_KEYS} more" if len(config) > _NAMED_KEYS else ""
    count = "1 configuration value differs" if len(config) == 1 else f"{len(config)} configuration values differ"
    return [f"{count}: {keys}{more}"]


def _joined(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}."
