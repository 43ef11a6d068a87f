"""What processes did lately: their busy and waiting times, and the phases of sessions that ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rl_insight.diagnosis.feed import Feed
from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, Interval, grouped
from rl_insight.diagnosis.span_table import SpanTable, told_tokens

_KEPT_INTERVALS = 2_000
_KEPT_CALLS = 2_000
_KEPT_GENERATIONS = 100


@dataclass(slots=True)
class Activity:
    """What one process did lately, in the order of the ends."""

    busy: deque[Interval] = field(default_factory=lambda: deque(maxlen=_KEPT_INTERVALS))
    waiting: deque[Interval] = field(default_factory=lambda: deque(maxlen=_KEPT_INTERVALS))


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


def note_activity(activity: dict[int, Activity], spans: SpanTable, owners: Column, is_wait: Column) -> None:
    """Add the intervals of states and phases, in the order of their ends, to what processes did."""
    starts, ends = spans.start_ns, spans.end_ns
    for key, places in grouped(2 * owners + is_wait):
        of_process = activity.get(key // 2)
        if of_process is None:  # setdefault would make one every time
            of_process = activity[key // 2] = Activity()
        kept = of_process.waiting if key % 2 else of_process.busy
        part = places[-_KEPT_INTERVALS:]
        for start, end in zip(starts[part].tolist(), ends[part].tolist(), strict=True):
            _merge(kept, start, end)


def _merge(kept: deque[Interval], start: int, end: int) -> None:
    """Add an interval, as one with the last where they touch: rules ask for the time that all of them cover.

    The states of a process follow each other, so this keeps a fraction of them; a late one is kept by itself.

    >>> kept = deque([(0, 2), (3, 5)])
    >>> for start, end in ((5, 7), (9, 10), (1, 2)):
    ...     _merge(kept, start, end)
    >>> list(kept)
    [(0, 2), (3, 7), (9, 10), (1, 2)]
    """
    while kept and start <= kept[-1][1] and kept[-1][0] <= end:
        first, last = kept.pop()
        start, end = min(start, first), max(end, last)
    kept.append((start, end))
