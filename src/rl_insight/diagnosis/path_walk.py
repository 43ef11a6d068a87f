"""One step, walked backward from its end to its start: the rules of the critical path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.path_suspects import PathSegment, StepPath, Suspect, by_unit, culprit_of
from rl_insight.diagnosis.robust import Column, medians, union_seconds
from rl_insight.store.queries.states import LanePlace, StateTimes
from rl_insight.store.queries.steps import StepWindow

_MAX_SEGMENTS = 200
_SHORT_NS = 1_000_000
"""Shorter gaps on the path are not shown."""
_POOL_CALLS = 1.5
"""A unit with more calls per step than this works through a queue: it is compared by time per call."""


class _Row(NamedTuple):
    """A state or phase inside a step."""

    end_ns: int
    start_ns: int
    lane_id: int
    name: str


class _WorkColumns(NamedTuple):
    """States and phases as columns, in the order of their ends: a step of ten thousand processes has 200,000."""

    end_ns: Column
    start_ns: Column
    lane_id: Column
    name_id: Column
    is_wait: Column

    def take(self, which: Column) -> _WorkColumns:
        return _WorkColumns(*(column[which] for column in self))


class Units:
    """The units of each role that are compared with each other: its processes, or the lanes of its only process."""

    def __init__(self, lanes: dict[int, LanePlace]) -> None:
        self._numbers = {role: number for number, role in enumerate({place.role for place in lanes.values()})}
        self._role_of = np.full(max(lanes, default=0) + 1, -1)
        self._unit_of = np.zeros_like(self._role_of)
        numbers = list(lanes)
        self._role_of[numbers] = [self._numbers[place.role] for place in lanes.values()]
        self._unit_of[numbers] = [place.process for place in lanes.values()]
        self.by_lane = set()
        """Roles that have a single process: their lanes are compared."""
        for role in self._numbers:
            members = self._of(role)
            if np.unique(self._unit_of[members]).size == 1:
                self.by_lane.add(role)
                self._unit_of[members] = members

    def _of(self, role: str) -> Column:
        return np.flatnonzero(self._role_of == self._numbers[role])

    def has_role(self, lane_ids: Column, role: str) -> Column:
        """Return which lanes belong to a role."""
        found: Column = self._role_of[lane_ids] == self._numbers.get(role, -2)
        return found

    def of(self, lane_ids: Column) -> Column:
        """Return the unit of each lane."""
        found: Column = self._unit_of[lane_ids]
        return found

    def first_lane(self, role: str, unit: int) -> int:
        """Return the first lane of a unit."""
        members = self._of(role)
        return int(members[self._unit_of[members] == unit][0])


class Walk:
    """One step, walked from its end to its start."""

    def __init__(self, states: StateTimes, units: Units, role: str, window: StepWindow) -> None:
        self._lanes = states.lanes
        self._names = states.names
        self._units = units
        self._role = role
        self._window = window
        self._start_ns, self._end_ns = window.start_ns, window.end_ns or window.start_ns
        columns = states.columns
        inside = np.flatnonzero((columns["start_ns"] < self._end_ns) & (columns["end_ns"] > self._start_ns))
        picked = inside[np.argsort(columns["end_ns"][inside], kind="stable")]
        ends, starts, lanes, names = (columns[name][picked] for name in ("end_ns", "start_ns", "lane_id", "name_id"))
        kinds = {number: state_kind(self._name(number)) for number in _distinct(names)}
        is_wait = np.zeros(max(kinds, default=0) + 1, np.bool_)
        is_wait[[number for number, kind in kinds.items() if kind == "wait"]] = True
        rows = _WorkColumns(ends, starts, lanes, names, is_wait[names])
        is_lead = units.has_role(lanes, role)
        self._lead = rows.take(is_lead)
        self._others = rows.take(~is_lead & ~rows.is_wait)
        self._kinds = {kinds[number] for number in _distinct(self._others.name_id)}

    def _name(self, number: int) -> str:
        return self._names.get(number, "")

    def _row(self, rows: _WorkColumns, place: int) -> _Row:
        end_ns, start_ns, lane_id, name_id = (int(column[place]) for column in rows[:4])
        return _Row(end_ns, start_ns, lane_id, self._name(name_id))

    def path(self) -> StepPath:
        """Return the path, with every unit on it that was slower than its peers."""
        segments = [one for one in self._walk() if one.end_ns - one.start_ns >= _SHORT_NS][::-1]
        suspects, excess_s = self._suspects(segments)
        culprit = culprit_of(suspects, excess_s)
        return StepPath(self._window.step, self._start_ns, self._end_ns, segments, excess_s, suspects, culprit)

    def _walk(self) -> Iterator[PathSegment]:
        """Yield the segments from the last to the first."""
        at_ns = self._end_ns
        for _ in range(_MAX_SEGMENTS):
            if at_ns <= self._start_ns:
                return
            row = self._before(at_ns)
            if row is None:
                return
            end_ns, start_ns = min(row.end_ns, at_ns), max(row.start_ns, self._start_ns)
            if end_ns < at_ns:
                yield self._segment(row, end_ns, at_ns, "")
            if state_kind(row.name) in {"wait", *self._kinds}:
                yield from self._waited_for(row, start_ns, end_ns)
            else:
                yield self._segment(row, start_ns, end_ns)
            at_ns = start_ns

    def _before(self, at_ns: int) -> _Row | None:
        """Return what the leading role did last before a time: work rather than a wait, then the longest."""
        lead = self._lead
        first = int(np.searchsorted(lead.end_ns, at_ns))
        last = first + np.flatnonzero(lead.start_ns[first:] < at_ns)
        if not last.size:
            if not first:
                return None
            last = np.arange(np.searchsorted(lead.end_ns, lead.end_ns[first - 1]), first)
        working = last[~lead.is_wait[last]]
        last = working if working.size else last
        return self._row(lead, int(last[lead.start_ns[last].argmin()]))

    def _waited_for(self, wait: _Row, start_ns: int, end_ns: int) -> Iterator[PathSegment]:
        """Yield what other roles did while the leading role waited, from the last to the first."""
        at_ns, lane = end_ns, None
        for _ in range(_MAX_SEGMENTS):
            row = self._last_of_others(at_ns, start_ns, lane)
            if row is None or at_ns <= start_ns:
                break
            if row.end_ns < at_ns:
                yield self._segment(wait, row.end_ns, at_ns)
            at_ns = max(row.start_ns, start_ns)
            yield self._segment(row, at_ns, min(row.end_ns, end_ns))
            lane = row.lane_id
        if at_ns > start_ns:
            yield self._segment(wait, start_ns, at_ns)

    def _last_of_others(self, at_ns: int, since_ns: int, lane: int | None) -> _Row | None:
        """Return the work that ended last between two times, on one lane or on any."""
        others = self._others
        first, last = np.searchsorted(others.end_ns, (since_ns, at_ns), side="right").tolist()
        places = np.arange(first, last) if lane is None else first + np.flatnonzero(others.lane_id[first:last] == lane)
        return self._row(others, int(places[-1])) if places.size else None

    def _segment(self, row: _Row, start_ns: int, end_ns: int, name: str | None = None) -> PathSegment:
        place = self._lanes[row.lane_id]
        text = row.name if name is None else name
        return PathSegment(
            start_ns, end_ns, text, state_kind(text) if text else "", row.lane_id, place.lane, place.role, place.rank,
            place.process_id, place.host,
        )  # fmt: skip

    def _suspects(self, segments: list[PathSegment]) -> tuple[list[Suspect], float]:
        """Return all units on the path that have peers, largest saving first, and the excess of the step."""
        on_path: dict[tuple[str, str], dict[int, float]] = {}
        for one in segments:
            if one.name and one.kind != "wait":
                units = on_path.setdefault((one.role, one.name), {})
                unit = int(self._units.of(np.array(one.lane_id)))
                units[unit] = units.get(unit, 0.0) + (one.end_ns - one.start_ns) / 1e9
        found = []
        excess_s = 0.0
        for (role, name), units in on_path.items():
            is_pool, numbers, paces = self._paces(role, name)
            if numbers.size < 2:
                continue
            for unit, path_s in units.items():
                place = int(np.searchsorted(numbers, unit))
                pace, others = float(paces[place]), np.delete(paces, place)
                usual_s = float(np.median(others))
                saved_s = _saved_in_pool(pace, others, path_s) if is_pool else _saved_at_barrier(pace, others)
                excess_s += saved_s if is_pool else max(0.0, min(path_s, pace - usual_s))
                if saved_s > 0:
                    found.append(self._suspect(role, unit, name, pace, usual_s, min(saved_s, path_s)))
        return by_unit(found, 1), excess_s

    def _paces(self, role: str, name: str) -> tuple[bool, Column, Column]:
        """Return whether a role works through a queue in a state, its units, and their times: per call if it does."""
        rows = self._lead if role == self._role else self._others
        named = np.isin(rows.name_id, [number for number, text in self._names.items() if text == name])
        called = rows.take(named & self._units.has_role(rows.lane_id, role))
        units = self._units.of(called.lane_id)
        if not units.size:
            return False, units, units
        starts, ends = called.start_ns.clip(self._start_ns), called.end_ns.clip(None, self._end_ns)
        if np.median(np.unique(units, return_counts=True)[1]) > _POOL_CALLS:
            return True, *medians(units, (ends - starts) / 1e9)
        _, numbers, seconds = union_seconds((np.zeros_like(units), units), starts, ends)
        return False, numbers, seconds

    def _suspect(self, role: str, unit: int, name: str, seconds: float, usual_s: float, saved_s: float) -> Suspect:
        is_lane = role in self._units.by_lane
        lane_id = unit if is_lane else self._units.first_lane(role, unit)
        place = self._lanes[lane_id]
        return Suspect(
            place.role, place.rank, place.process_id, place.host, lane_id, place.lane if is_lane else None, name,
            seconds, usual_s, saved_s, (self._end_ns - self._start_ns) / 1e9, "",
        )  # fmt: skip


def _distinct(numbers: Column) -> list[int]:
    """Return the distinct values of a column of small numbers."""
    found: list[int] = np.flatnonzero(np.bincount(numbers)).tolist()
    return found


def _saved_at_barrier(seconds: float, others: Column) -> float:
    """Return what a step would save if a unit took as long as the median of its peers, which all wait for it.

    The peers keep their times, so the slowest of them bounds the saving.

    >>> _saved_at_barrier(9.0, np.array([4.0, 5.0])), _saved_at_barrier(4.0, np.array([5.0, 9.0]))
    (4.0, 0.0)
    """
    return max(0.0, seconds - float(others.max()))


def _saved_in_pool(pace: float, others: Column, path_s: float) -> float:
    """Return what a step would save on its critical path if a unit of a pool worked at the pace of its peers.

    Paces are seconds per call: in a pool every unit is always busy, and the slow one finishes fewer calls.

    >>> _saved_in_pool(2.0, np.array([1.0, 1.0]), 6.0)
    3.0
    """
    return path_s * max(0.0, 1.0 - float(np.median(others)) / pace) if pace > 0 else 0.0
