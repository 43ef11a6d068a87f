"""How the latest steps go: slow ones, a running one that is overdue, the trend of their time, and failed spans."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from statistics import median

import msgspec

from rl_insight.schema.names import Severity
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.overdue import SLOW_STEP, SLOWER_STEPS, running_step_severity
from rl_insight.store.queries.steps import MAX_STEPS, StepWindow, live_roles, span_counts, step_windows
from rl_insight.store.tables import SECOND

NEIGHBORS = 30
"""A typical step is the median of at most this many finished steps on each side."""
_LEAST_NEIGHBORS = 5
"""With fewer, no step is called slow."""
_LATEST = 5
_LEAST_STEPS = 3 * _LATEST
"""With fewer, there is no trend."""
_ERROR_STEPS = 10
_SOME_ERRORS = 0.02
_MANY_ERRORS = 0.2
"""The shares of failed spans above which there is a warning, and above which it is critical."""


class SlowStep(msgspec.Struct, frozen=True):
    """A finished step that took much longer than a typical one."""

    step: int
    start_ns: int
    end_ns: int
    usual_ns: int
    ratio: float
    """Its duration as a multiple of `usual_ns`."""
    severity: Severity


class RunningStep(msgspec.Struct, frozen=True):
    """The step that has not finished."""

    step: int
    start_ns: int
    age_s: float
    usual_ns: int | None
    """None if no step has finished."""
    severity: Severity | None
    """A warning after max(30 s, 3 × p99 of the steps around it), critical after max(120 s, 10 × their median), as in
    the rule `stalled_run`; with fewer than three of them, only critical, after six times as long. None otherwise."""


class StepErrors(msgspec.Struct, frozen=True):
    """The failed spans of the latest ten steps, of all roles."""

    spans: int
    """Ended spans."""
    errors: int
    share: float | None
    """`errors` relative to `spans`; None without spans."""
    severity: Severity | None
    """A warning above 2%, critical above 20%."""


class StepPace(msgspec.Struct, frozen=True, kw_only=True):
    """How long the latest steps took, and what failed in them.

    A typical step is the median of its finished neighbors, as in `steps/compare`.
    """

    last_ns: int | None
    """The duration of the last finished step; None if there is none."""
    usual_ns: int | None
    """The duration of a step that is typical there; None if no other step has finished."""
    change: float | None
    """The median of the last five finished steps relative to those before: 0.2 means 20% longer; None for fewer than 15
    steps."""
    severity: Severity | None
    """A warning if steps take over 20% longer than before."""
    running: RunningStep | None
    """None if the run has ended or fallen silent."""
    slow: list[SlowStep]
    """Finished steps that took at least 1.6 times as long as a typical one, the slowest first."""
    errors: StepErrors


class StepLengths:
    """The durations of finished steps, and of typical ones around each."""

    def __init__(self, lengths: Iterable[tuple[int, int]]) -> None:
        self._lengths = sorted(lengths)

    def around(self, step: int) -> list[int]:
        """Return the durations of the neighbors of a step.

        >>> StepLengths([(1, 10), (2, 12), (3, 50), (40, 99)]).around(3)
        [10, 12]
        """
        first = bisect_left(self._lengths, step - NEIGHBORS, key=lambda one: one[0])
        last = bisect_right(self._lengths, step + NEIGHBORS, key=lambda one: one[0])
        return [length for number, length in self._lengths[first:last] if number != step]

    def typical_ns(self, step: int) -> int | None:
        """Return the duration of a step that is typical around this one; None without neighbors."""
        lengths = self.around(step)
        return round(median(lengths)) if lengths else None


def step_pace(cursor: Cursor, limit: int = 60, *, last: int | None = None, now_ns: int) -> StepPace:
    """Return how long the latest steps took compared with typical ones; with `last`, those up to this number."""
    if not 1 <= limit <= MAX_STEPS:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_STEPS}.")
    role, windows = step_windows(cursor, now_ns)
    lengths = StepLengths((one.step, one.end_ns - one.start_ns) for one in windows if one.end_ns is not None)
    shown = [one for one in windows if last is None or one.step <= last][-limit:]
    taken = [(one.step, one.end_ns - one.start_ns) for one in shown if one.end_ns is not None]
    is_running = bool(shown) and shown[-1].end_ns is None and role in live_roles(cursor, now_ns)
    change = _change([length for _, length in taken])
    slow = [found for one in shown if (found := _slow(one, lengths)) is not None]
    return StepPace(
        last_ns=taken[-1][1] if taken else None,
        usual_ns=lengths.typical_ns(taken[-1][0]) if taken else None,
        change=change,
        severity="warning" if change is not None and change > SLOWER_STEPS else None,
        running=_running(shown[-1], lengths, now_ns) if is_running else None,
        slow=sorted(slow, key=lambda one: -one.ratio),
        errors=_errors(cursor, shown[-_ERROR_STEPS:]),
    )


def _errors(cursor: Cursor, windows: list[StepWindow]) -> StepErrors:
    counts = span_counts(cursor, windows).values()
    spans, errors = sum(spans for spans, _ in counts), sum(errors for _, errors in counts)
    share = errors / spans if spans else None
    return StepErrors(spans, errors, share, _error_severity(share or 0.0))


def _error_severity(share: float) -> Severity | None:
    if share > _MANY_ERRORS:
        return "critical"
    return "warning" if share > _SOME_ERRORS else None


def _change(lengths: list[int]) -> float | None:
    before = lengths[:-_LATEST]
    if len(lengths) < _LEAST_STEPS or not median(before):
        return None
    return median(lengths[-_LATEST:]) / median(before) - 1


def _slow(one: StepWindow, lengths: StepLengths) -> SlowStep | None:
    if one.end_ns is None:
        return None
    around = lengths.around(one.step)
    usual_ns = round(median(around)) if len(around) >= _LEAST_NEIGHBORS else 0
    if not usual_ns or one.end_ns - one.start_ns < SLOW_STEP * usual_ns:
        return None
    return SlowStep(one.step, one.start_ns, one.end_ns, usual_ns, (one.end_ns - one.start_ns) / usual_ns, "warning")


def _running(one: StepWindow, lengths: StepLengths, now_ns: int) -> RunningStep:
    age_s = max(0, now_ns - one.start_ns) / SECOND
    severity = running_step_severity(age_s, [length / SECOND for length in lengths.around(one.step)])
    return RunningStep(one.step, one.start_ns, age_s, lengths.typical_ns(one.step), severity)
