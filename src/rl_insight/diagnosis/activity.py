"""What processes did lately: their busy and waiting times, and the phases of sessions that ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, Interval, clipped, grouped, merged, union
from rl_insight.diagnosis.span_table import SpanTable, told_tokens

_KEPT_INTERVALS = 200_000
_KEPT_OF_EACH = 200
"""Intervals of 24 bytes: so many of all processes together, or of each where there are more than a thousand."""
_KEPT_CALLS = 2_000
_KEPT_GENERATIONS = 100


class _Noted(NamedTuple):
    """The intervals of one moment, by key and start; those of a key do not touch."""

    keys: Column
    """Twice the number of the process, and one more where it waited."""
    starts: Column
    ends: Column


class ActivityBook:
    """When processes were busy and when they waited lately; as columns, for there may be ten thousand of them."""

    def __init__(self) -> None:
        self._moments: deque[_Noted] = deque()
        self._processes: set[int] = set()
        self._kept = 0

    def __contains__(self, process: int) -> bool:
        return process in self._processes

    def note(self, spans: SpanTable, owners: Column, is_wait: Column) -> None:
        """Take the states and phases that ended in a moment, the process of each, and whether it is a wait."""
        if not spans.size:
            return
        noted = _Noted(*merged(2 * owners + is_wait, spans.start_ns, spans.end_ns))
        self._processes.update(np.unique(noted.keys // 2).tolist())
        self._moments.append(noted)
        self._kept += noted.keys.size
        most = max(_KEPT_INTERVALS, _KEPT_OF_EACH * len(self._processes))
        while self._kept > most and len(self._moments) > 1:
            self._kept -= self._moments.popleft().keys.size

    def busy(self, process: int, start_ns: int, end_ns: int) -> list[Interval]:
        """Return when a process was busy in a window, without overlaps and in order."""
        return self._between(2 * process, start_ns, end_ns)

    def waiting(self, process: int, start_ns: int, end_ns: int) -> list[Interval]:
        """Return when a process waited in a window, without overlaps and in order."""
        return self._between(2 * process + 1, start_ns, end_ns)

    def _between(self, key: int, start_ns: int, end_ns: int) -> list[Interval]:
        found: list[Interval] = []
        for noted in self._moments:
            first, last = np.searchsorted(noted.keys, (key, key + 1)).tolist()
            found += zip(noted.starts[first:last].tolist(), noted.ends[first:last].tolist(), strict=True)
        return union(clipped(found, start_ns, end_ns))

    def busy_by_group(self, groups: Mapping[int, str], start_ns: int, end_ns: int) -> dict[str, list[Interval]]:
        """Return when any process of a group was busy in a window; `groups` has the group of each process."""
        if not self._moments or not groups:
            return {}
        names = sorted(set(groups.values()))
        place = {name: number for number, name in enumerate(names)}
        group_of = np.full(max(*self._processes, *groups) + 1, -1)
        group_of[list(groups)] = [place[name] for name in groups.values()]
        keys, starts, ends = map(np.concatenate, zip(*self._moments, strict=True))
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
        """Forget the moments in which everything ended before another one."""
        while self._moments and int(self._moments[0].ends.max()) < until_ns:
            self._kept -= self._moments.popleft().keys.size


class Call(NamedTuple):
    """One phase of a session that ended."""

    end_ns: int
    seconds: float
    tokens: float | None
    failed: bool
    error: str | None
    process: int
    session_id: str | None


class CallBook:
    """The phases of sessions that ended lately."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self.by_tool: dict[tuple[str, str], deque[Call]] = {}
        """By name and tool."""
        self.generations: dict[str, dict[int, deque[Call]]] = {}
        """Those that generate, by name and process: a thousand processes must not push out each other's."""

    def add(self, phases: SpanTable, owners: Column) -> None:
        """Take phases in the order of their ends, and the process of each."""
        for number in np.unique(phases.name_id).tolist():
            name = self._feed.names[number]
            places = np.flatnonzero(phases.name_id == number)
            by_tool: dict[str, list[int]] = {}
            tools = phases.tool[places].tolist()
            for place, tool in zip(reversed(places.tolist()), reversed(tools), strict=True):
                kept = by_tool.setdefault(tool or "", [])
                if len(kept) < _KEPT_CALLS:
                    kept.append(place)
            for tool, kept in by_tool.items():
                calls = self.by_tool.setdefault((name, tool), deque(maxlen=_KEPT_CALLS))
                calls.extend(_calls(phases, owners, np.array(kept[::-1])))
            if state_kind(name) == "generate":
                self._add_generations(self.generations.setdefault(name, {}), phases, owners, places)

    @staticmethod
    def _add_generations(by_process: dict[int, deque[Call]], phases: SpanTable, owners: Column, places: Column) -> None:
        for process, part in grouped(owners[places]):
            calls = by_process.setdefault(process, deque(maxlen=_KEPT_GENERATIONS))
            calls.extend(_calls(phases, owners, places[part[-_KEPT_GENERATIONS:]]))


def calls_in(kept: deque[Call], start_ns: int, end_ns: int) -> list[Call]:
    """Return the calls that ended in a window; the last ones, where there were more since than are kept."""
    if kept and len(kept) == kept.maxlen and kept[0].end_ns > start_ns:
        return list(kept)
    found = []
    for call in reversed(kept):
        if call.end_ns <= start_ns:
            break
        if call.end_ns <= end_ns:
            found.append(call)
    return found[::-1]


def _calls(phases: SpanTable, owners: Column, places: Column) -> list[Call]:
    some = phases.take(places)
    columns = (some.seconds, some.failed, some.error, owners[places], some.session_id)
    seconds, failed, errors, processes, sessions = (column.tolist() for column in columns)
    tokens = told_tokens(some.tokens.tolist())
    ends = some.end_ns.tolist()
    return list(map(Call._make, zip(ends, seconds, tokens, failed, errors, processes, sessions, strict=True)))
