"""The durations of a session, from its marks and phases: for records in files, and for live and imported rows."""

from __future__ import annotations

from collections.abc import Iterable
from operator import itemgetter
from typing import Final, NamedTuple

from rl_insight.sessions.model import EXECUTION, GENERATE

Interval = tuple[float, "float | None", str]
"""Start, end (None while the phase is open) and name of a phase; times are seconds."""

_start_of = itemgetter(0)


class SessionDurations(NamedTuple):
    """Seconds; None where a mark or a phase is missing."""

    queue_wait_s: float | None
    runner_wait_s: float | None
    post_wait_s: float | None
    total_s: float | None
    phase_seconds: dict[str, float]
    """The time covered by at least one of the ended intervals of a phase, by name."""
    generations: int
    """How many `generate` phases ended."""


WAITS: Final = tuple(name for name in SessionDurations._fields if name.endswith("_s"))


def durations(
    submit_ts: float | None,
    enqueue_ts: float | None,
    wait_return_ts: float | None,
    finalized_ts: float | None,
    phases: Iterable[Interval],
) -> SessionDurations:
    """Compute the durations of a session. Those that would be negative because of clock errors are 0.

    >>> durations(10.0, 10.5, None, 14.0, [(11.0, 13.0, "execution"), (11.0, 12.0, "reward"), (11.5, 12.5, "reward")])
    SessionDurations(queue_wait_s=0.5, runner_wait_s=0.5, post_wait_s=None, total_s=4.0, \
phase_seconds={'execution': 2.0, 'reward': 1.5}, generations=0)
    """
    first_start: float | None = None
    first_end: float | None = None
    generations = 0
    seconds: dict[str, float] = {}
    reached: dict[str, float] = {}
    for start, end, name in sorted(phases, key=_start_of):
        if name == EXECUTION:
            first_start = start if first_start is None else first_start
            first_end = end if first_end is None or (end is not None and end < first_end) else first_end
        if end is None:
            continue
        generations += name == GENERATE
        if name not in seconds:
            seconds[name] = _length(start, end)
            reached[name] = end
        elif end > reached[name]:
            seconds[name] = round(seconds[name] + _length(max(start, reached[name]), end), 6)
            reached[name] = end
    ended_ts = max((mark for mark in (wait_return_ts, finalized_ts) if mark is not None), default=None)
    return SessionDurations(
        queue_wait_s=_between(submit_ts, enqueue_ts),
        runner_wait_s=_between(enqueue_ts, first_start),
        post_wait_s=_between(first_end, wait_return_ts),
        total_s=_between(submit_ts, ended_ts),
        phase_seconds=seconds,
        generations=generations,
    )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else _length(start, end)


def _length(start: float, end: float) -> float:
    """Return the seconds between two times, rounded to microseconds: a double holds times since 1970 to 0.25 µs."""
    return round(end - start, 6) if end > start else 0.0
