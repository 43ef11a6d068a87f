"""Recent activity of processes: busy and waiting times, finished session phases, and the pace of work."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, Interval, clipped, median, merged, union
from rl_insight.diagnosis.rows import SECOND, ended_between
from rl_insight.diagnosis.span_table import SpanTable, token_counts
from rl_insight.store.queries.intervals import by_group

_KEPT_INTERVALS = 200_000
_KEPT_OF_EACH = 200
"""Intervals of 24 bytes: the limit for all processes together, or for each if there are more than a thousand."""
_KEPT_CALLS = 2_000
_KEPT_GENERATIONS = 100

Work = tuple[str, str]
"""A role and the name of a state or phase."""

_KEPT_TICKS: Final = 720
_BEFORE_NS: Final = 300 * SECOND
_LEAST_SPANS: Final = 3
_LEAST_KINDS: Final = 3
_LATE_NS: Final = 5 * SECOND
"""Work that ended in a window is recorded under the next tick."""


class _Noted(NamedTuple):
    """The intervals of one tick, by key and start; those of a key do not touch."""

    keys: Column
    """Twice the number of the process, plus one if it waited."""
    starts: Column
    ends: Column


class ActivityBook:
    """When processes were recently busy or waiting; in columns, because there may be ten thousand processes."""

    def __init__(self) -> None:
        self._ticks: deque[_Noted] = deque()
        self._processes: set[int] = set()
        self._kept = 0

    def __contains__(self, process: int) -> bool:
        return process in self._processes

    def note(self, spans: SpanTable, owners: Column, is_wait: Column) -> None:
        """Add the states and phases that ended since the last call, the process of each, and whether it is a wait."""
        if not spans.size:
            return
        noted = _Noted(*merged(2 * owners + is_wait, spans.start_ns, spans.end_ns))
        self._processes.update(np.unique(noted.keys // 2).tolist())
        self._ticks.append(noted)
        self._kept += noted.keys.size
        most = max(_KEPT_INTERVALS, _KEPT_OF_EACH * len(self._processes))
        while self._kept > most and len(self._ticks) > 1:
            self._kept -= self._ticks.popleft().keys.size

    def busy(self, process: int, start_ns: int, end_ns: int) -> list[Interval]:
        """Return when a process was busy in a window, without overlaps and in order."""
        return self._between(2 * process, start_ns, end_ns)

    def waiting(self, process: int, start_ns: int, end_ns: int) -> list[Interval]:
        """Return when a process waited in a window, without overlaps and in order."""
        return self._between(2 * process + 1, start_ns, end_ns)

    def _between(self, key: int, start_ns: int, end_ns: int) -> list[Interval]:
        found: list[Interval] = []
        for noted in self._ticks:
            first, last = np.searchsorted(noted.keys, (key, key + 1)).tolist()
            found += zip(noted.starts[first:last].tolist(), noted.ends[first:last].tolist(), strict=True)
        return union(clipped(found, start_ns, end_ns))

    def busy_by_group(self, groups: Mapping[int, str], start_ns: int, end_ns: int) -> dict[str, list[Interval]]:
        """Return when any process of a group was busy in a window; `groups` has the group of each process."""
        if not self._ticks or not groups:
            return {}
        names = sorted(set(groups.values()))
        place = {name: number for number, name in enumerate(names)}
        group_of = np.full(max(*self._processes, *groups) + 1, -1)
        group_of[list(groups)] = [place[name] for name in groups.values()]
        keys, starts, ends = map(np.concatenate, zip(*self._ticks, strict=True))
        of_interval = np.where(keys % 2 == 0, group_of[keys // 2], -1)
        is_asked = (of_interval >= 0) & (starts < end_ns) & (ends > start_ns)
        if not is_asked.any():
            return {}
        starts, ends = starts[is_asked].clip(start_ns), ends[is_asked].clip(None, end_ns)
        found: dict[str, list[Interval]] = {}
        columns = (column.tolist() for column in merged(of_interval[is_asked], starts, ends))
        for number, start, end in zip(*columns, strict=True):
            found.setdefault(names[number], []).append((start, end))
        return found

    def forget(self, until_ns: int) -> None:
        """Drop the ticks in which everything ended before a time."""
        while self._ticks and int(self._ticks[0].ends.max()) < until_ns:
            self._kept -= self._ticks.popleft().keys.size


class Call(NamedTuple):
    """One finished session phase."""

    end_ns: int
    seconds: float
    tokens: float | None
    failed: bool
    error: str | None
    process: int
    session_id: str | None


class CallBook:
    """Session phases that ended recently."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.by_tool: dict[tuple[str, str], deque[Call]] = {}
        self.generations: dict[str, dict[int, deque[Call]]] = {}
        """Generation phases, by name and process, so that a thousand processes do not evict each other's."""

    def add(self, phases: SpanTable, owners: Column) -> None:
        """Add phases ordered by their ends, and the process of each."""
        for number, places in by_group(phases.name_id):
            name = self._feed.names[number]
            by_tool: dict[str, list[int]] = {}
            tools = phases.tool[places].tolist()
            for place, tool in zip(reversed(places.tolist()), reversed(tools), strict=True):
                kept = by_tool.setdefault(tool or "", [])
                if len(kept) < _KEPT_CALLS:
                    kept.append(place)
            for tool, kept in by_tool.items():
                calls = self.by_tool.setdefault((name, tool), deque(maxlen=_KEPT_CALLS))
                calls.extend(_calls(phases, owners, np.array(kept[::-1])))
            if state_kind(name) != "generate":
                continue
            by_process = self.generations.setdefault(name, {})
            for process, part in by_group(owners[places]):
                last = by_process.setdefault(process, deque(maxlen=_KEPT_GENERATIONS))
                last.extend(_calls(phases, owners, places[part[-_KEPT_GENERATIONS:]]))


def calls_in(kept: deque[Call], start_ns: int, end_ns: int) -> list[Call]:
    """Return the calls that ended in a window, or only the latest if older ones are no longer kept."""
    if kept and len(kept) == kept.maxlen and kept[0].end_ns > start_ns:
        return list(kept)
    return ended_between(kept, start_ns, end_ns)


def _calls(phases: SpanTable, owners: Column, places: Column) -> list[Call]:
    some = phases.take(places)
    columns = (some.seconds, some.failed, some.error, owners[places], some.session_id)
    seconds, failed, errors, processes, sessions = (column.tolist() for column in columns)
    tokens = token_counts(some.tokens.tolist())
    ends = some.end_ns.tolist()
    return list(map(Call._make, zip(ends, seconds, tokens, failed, errors, processes, sessions, strict=True)))


class PaceBook:
    """The speed of all work, compared with the minutes before.

    A machine that is busy with something else slows all work alike; a fault slows one kind of work.
    """

    def __init__(self) -> None:
        self._ticks: deque[tuple[int, dict[Work, tuple[float, int]]]] = deque(maxlen=_KEPT_TICKS)

    def begin(self, as_of_ns: int) -> None:
        """Begin a tick."""
        self._ticks.append((as_of_ns, {}))

    def note(self, work: Work, seconds: Column) -> None:
        """Add the durations of one kind of work in this tick."""
        if seconds.size and state_kind(work[1]) != "wait":
            self._ticks[-1][1][work] = (float(np.median(seconds)), seconds.size)

    def slowdown(self, start_ns: int, end_ns: int, without: str | None = None) -> float:
        """Return how much longer all work took in a window than in the five minutes before it; at least 1.

        It is the median over all kinds of work, so one slow kind changes nothing; `without` excludes one.
        """
        now = self._usual(start_ns, end_ns + _LATE_NS, 1)
        before = self._usual(start_ns - _BEFORE_NS, start_ns, _LEAST_SPANS)
        found = [now[work] / max(before[work], 1e-9) for work in now if work in before and work[1] != without]
        return max(1.0, median(found)) if len(found) >= _LEAST_KINDS else 1.0

    def _usual(self, start_ns: int, end_ns: int, least: int) -> dict[Work, float]:
        """Return the time of each kind of work that ended in a window at least `least` times."""
        seconds: dict[Work, list[float]] = {}
        counts: dict[Work, int] = {}
        for as_of_ns, kinds in reversed(self._ticks):
            if as_of_ns <= start_ns:
                break
            if as_of_ns > end_ns:
                continue
            for work, (taken, count) in kinds.items():
                seconds.setdefault(work, []).append(taken)
                counts[work] = counts.get(work, 0) + count
        return {work: median(some) for work, some in seconds.items() if counts[work] >= least}
