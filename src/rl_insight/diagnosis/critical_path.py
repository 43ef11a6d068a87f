"""The critical path of steps: which process they waited for, and how long they would take if it were faster.

The path is walked backward from the end of a step. While the leading role works, the rank that finished last is on the
path; while it waits, the path follows the work of another role that ended the wait, and what preceded it on its lane.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from rl_insight.diagnosis.names import state_kind
from rl_insight.diagnosis.robust import Column, median, medians, union_seconds
from rl_insight.schema.names import process_name
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.states import States
from rl_insight.store.queries.steps import StepWindow, step_windows
from rl_insight.words import seconds_text

MAX_STEPS = 50
_MAX_SEGMENTS = 200
_SHORT_NS = 1_000_000
"""Shorter gaps on the path are not shown."""
_POOL_CALLS = 1.5
"""A unit with more calls per step than this works through a queue: it is compared by time per call."""
_NAMED_SHARE = 0.5
"""A suspect that explains at least this share of the excess is the culprit."""
_LEAST_SHARE = 0.02
"""Smaller savings, as a share of the step, are noise and not listed."""
_SUSPECTS = 3


class PathSegment(msgspec.Struct, frozen=True):
    """A part of a step's critical path; segments are in chronological order and do not overlap."""

    start_ns: int
    end_ns: int
    name: str
    """The state or phase; empty where nothing was recorded."""
    kind: str
    """The kind of work, by its name: `wait`, `generate`, `update` and so on; `work` if it indicates none."""
    lane_id: int
    lane: str | None
    role: str
    rank: int | None
    process_id: str
    host: str


class Suspect(msgspec.Struct, frozen=True):
    """A process, or a lane of the only process of a role, that a step waited for."""

    role: str
    rank: int | None
    process_id: str
    host: str
    lane_id: int
    lane: str | None
    name: str
    """The state or phase that was waited for; of several, the one that would save the most."""
    seconds: float
    """Its time there in a step; in a pool, the time of one call."""
    usual_seconds: float
    """The median of its peers."""
    saved_seconds: float
    """How much shorter a step would be if it were as fast as its peers in everything that was waited for."""
    step_seconds: float
    """The length of a step."""
    text: str
    """A summary in one sentence."""
    steps: int = 1
    """The number of steps in which it was a suspect."""

    @property
    def is_notable(self) -> bool:
        """Whether a fix would make steps noticeably shorter."""
        return self.saved_seconds >= _LEAST_SHARE * self.step_seconds


class StepPath(msgspec.Struct, frozen=True):
    """The critical path of one finished step."""

    step: int
    start_ns: int
    end_ns: int
    segments: list[PathSegment]
    excess_seconds: float
    """How much shorter the step would be if nothing on the path were slower than the median of its peers."""
    suspects: list[Suspect]
    """The three that would save the most, at least 2% of the step each."""
    culprit: Suspect | None
    """The suspect that explains at least half of the excess; None if no single one does."""


class CriticalPath(msgspec.Struct, frozen=True):
    """The critical paths of some steps, and the processes that they waited for repeatedly."""

    role: str
    """The role that leads the steps."""
    steps: list[StepPath]
    excess_seconds: float
    """Per step, on average."""
    suspects: list[Suspect]
    """The three that would save the most per step over all of these steps, at least 2% of a step each."""
    culprit: Suspect | None
    """The one that explains at least half of the excess over all of these steps; None if no single one does."""


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


def critical_path(cursor: Cursor, limit: int = 10, *, last: int | None = None) -> CriticalPath:
    """Return the process that each of the last finished steps waited for, and the step time if it were faster.

    With `last`, only steps up to this number. A suspect that explains at least half of the excess is the culprit;
    otherwise there is none, and the suspects are the three that would save the most.

    Raises:
        QueryError: `limit` is out of range.
    """
    if not 1 <= limit <= MAX_STEPS:
        raise QueryError(f"limit {limit} is out of range: it must be from 1 to {MAX_STEPS}.")
    role, windows = step_windows(cursor)
    chosen = [one for one in windows if one.end_ns is not None and (last is None or one.step <= last)][-limit:]
    if not chosen:
        return CriticalPath(role, [], 0.0, [], None)
    states = States(cursor, chosen)
    units = _units(states)
    found = [_Walk(states, units, role, window).path() for window in chosen]
    shown = [msgspec.structs.replace(path, suspects=_notable(path.suspects)) for path in found]
    return CriticalPath(role, shown, *_over_steps(found))


class _RoleUnits(NamedTuple):
    """The units of a role that are compared with each other."""

    by_lane: bool
    """The role has a single process: its lanes are compared."""
    of_lane: dict[int, int]
    """Lane to its process, or to itself."""


def _units(states: States) -> dict[str, _RoleUnits]:
    """Return the units of each role."""
    owners: dict[str, dict[int, int]] = {}
    for lane_id, place in states.lanes.items():
        owners.setdefault(place.role, {})[lane_id] = place.process
    return {
        role: _RoleUnits(False, lanes)
        if len(set(lanes.values())) > 1
        else _RoleUnits(True, {one: one for one in lanes})
        for role, lanes in owners.items()
    }


class _Walk:
    """One step, walked from its end to its start."""

    def __init__(self, states: States, units: dict[str, _RoleUnits], role: str, window: StepWindow) -> None:
        self._lanes = states.lanes
        self._names = states.names
        self._units = units
        self._role = role
        self._window = window
        self._start_ns, self._end_ns = window.start_ns, window.end_ns or window.start_ns
        columns = states.columns
        inside = (columns["start_ns"] < self._end_ns) & (columns["end_ns"] > self._start_ns)
        picked = np.flatnonzero(inside)[np.argsort(columns["end_ns"][inside], kind="stable")]
        names = columns["name_id"][picked]
        waits = [number for number in np.unique(names).tolist() if state_kind(self._name(number)) == "wait"]
        ends, starts, lanes = (columns[name][picked] for name in ("end_ns", "start_ns", "lane_id"))
        rows = _WorkColumns(ends, starts, lanes, names, np.isin(names, waits))
        leading = [lane_id for lane_id, place in self._lanes.items() if place.role == role]
        is_lead = np.isin(rows.lane_id, leading)
        self._lead = rows.take(is_lead)
        self._others = rows.take(~is_lead & ~rows.is_wait)
        self._kinds = {state_kind(self._name(number)) for number in np.unique(self._others.name_id).tolist()}

    def _name(self, number: int) -> str:
        return self._names.get(number, "")

    def _row(self, rows: _WorkColumns, place: int) -> _Row:
        end_ns, start_ns, lane_id, name_id = (int(column[place]) for column in rows[:4])
        return _Row(end_ns, start_ns, lane_id, self._name(name_id))

    def path(self) -> StepPath:
        """Return the path, with every unit on it that was slower than its peers."""
        segments = [one for one in self._walk() if one.end_ns - one.start_ns >= _SHORT_NS][::-1]
        suspects, excess_s = self._suspects(segments)
        culprit = _culprit(suspects, excess_s)
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
        begun = np.flatnonzero(lead.start_ns < at_ns)
        if not begun.size:
            return None
        ends = np.minimum(lead.end_ns[begun], at_ns)
        last = begun[ends == ends.max()]
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
                unit = self._units[one.role].of_lane[one.lane_id]
                units[unit] = units.get(unit, 0.0) + (one.end_ns - one.start_ns) / 1e9
        found = []
        excess_s = 0.0
        for (role, name), units in on_path.items():
            is_pool, seconds = self._paces(role, name)
            if len(seconds) < 2:
                continue
            for unit, path_s in units.items():
                usual_s = median([value for other, value in seconds.items() if other != unit])
                saved_s = _saved_in_pool(seconds, unit, path_s) if is_pool else _saved_at_barrier(seconds, unit)
                excess_s += saved_s if is_pool else max(0.0, min(path_s, seconds[unit] - usual_s))
                if saved_s > 0:
                    found.append(self._suspect(role, unit, name, seconds[unit], usual_s, min(saved_s, path_s)))
        return _by_unit(found, 1), excess_s

    def _paces(self, role: str, name: str) -> tuple[bool, dict[int, float]]:
        """Return whether a role works through a queue in a state, and the time of each unit: per call if it does."""
        of_lane = self._units[role].of_lane
        rows = self._lead if role == self._role else self._others
        names = [number for number, text in self._names.items() if text == name]
        called = rows.take(np.isin(rows.name_id, names) & np.isin(rows.lane_id, list(of_lane)))
        if not called.end_ns.size:
            return False, {}
        unit_of = np.zeros(max(of_lane) + 1, np.int64)
        unit_of[list(of_lane)] = list(of_lane.values())
        units = unit_of[called.lane_id]
        starts, ends = called.start_ns.clip(self._start_ns), called.end_ns.clip(None, self._end_ns)
        if np.median(np.unique(units, return_counts=True)[1]) > _POOL_CALLS:
            numbers, seconds = medians(units, (ends - starts) / 1e9)
            return True, dict(zip(numbers.tolist(), seconds.tolist(), strict=True))
        _, numbers, seconds = union_seconds((np.zeros_like(units), units), starts, ends)
        return False, dict(zip(numbers.tolist(), seconds.tolist(), strict=True))

    def _suspect(self, role: str, unit: int, name: str, seconds: float, usual_s: float, saved_s: float) -> Suspect:
        by_lane, of_lane = self._units[role]
        lane_id = unit if by_lane else min(lane for lane, owner in of_lane.items() if owner == unit)
        place = self._lanes[lane_id]
        lane = place.lane if by_lane else None
        return Suspect(
            place.role, place.rank, place.process_id, place.host, lane_id, lane, name, seconds, usual_s, saved_s,
            (self._end_ns - self._start_ns) / 1e9, "",
        )  # fmt: skip


def _saved_at_barrier(seconds: Mapping[int, float], unit: int) -> float:
    """Return what a step would save if one unit took as long as the median of its peers, which all wait for it.

    The peers keep their times, so the slowest of them bounds the saving.

    >>> _saved_at_barrier({0: 4.0, 1: 5.0, 2: 9.0}, 2), _saved_at_barrier({0: 4.0, 1: 5.0, 2: 9.0}, 0)
    (4.0, 0.0)
    """
    others = [value for other, value in seconds.items() if other != unit]
    if not others:
        return 0.0
    return max(0.0, seconds[unit] - max(median(others), *others))


def _saved_in_pool(paces: Mapping[int, float], unit: int, path_s: float) -> float:
    """Return what a step would save on its critical path if one unit of a pool worked at the pace of its peers.

    `paces` are seconds per call: in a pool every unit is always busy, and the slow one finishes fewer calls.

    >>> _saved_in_pool({0: 1.0, 1: 1.0, 2: 2.0}, 2, 6.0)
    3.0
    """
    others = [pace for other, pace in paces.items() if other != unit]
    if not others or paces[unit] <= 0:
        return 0.0
    return path_s * max(0.0, 1.0 - median(others) / paces[unit])


def _by_unit(suspects: Iterable[Suspect], steps: int) -> list[Suspect]:
    """Return one suspect per unit with its saving per step, largest saving first."""
    units: dict[int, list[Suspect]] = {}
    for one in suspects:
        units.setdefault(one.lane_id, []).append(one)
    return sorted((_merged(seen, steps) for seen in units.values()), key=lambda one: -one.saved_seconds)


def _notable(suspects: list[Suspect]) -> list[Suspect]:
    """Return the suspects to show; they must be ordered."""
    return [_with_text(one) for one in suspects if one.is_notable][:_SUSPECTS]


def _merged(seen: list[Suspect], steps: int) -> Suspect:
    """Return one suspect for a unit, with its saving over all states per step."""
    saved: dict[str, float] = {}
    for one in seen:
        saved[one.name] = saved.get(one.name, 0.0) + one.saved_seconds
    name = max(saved, key=lambda known: saved[known])
    return msgspec.structs.replace(
        seen[0],
        name=name,
        seconds=median([one.seconds for one in seen if one.name == name]),
        usual_seconds=median([one.usual_seconds for one in seen if one.name == name]),
        saved_seconds=sum(saved.values()) / steps,
    )


def _with_text(one: Suspect) -> Suspect:
    who = one.lane or process_name(one.role, one.rank)
    at = f" on {one.host}" if one.host else ""
    shorter, now = seconds_text(one.step_seconds - one.saved_seconds), seconds_text(one.step_seconds)
    text = f"If {who}{at} were as fast as its peers, steps would take {shorter} instead of {now}"
    return msgspec.structs.replace(one, text=text)


def _culprit(suspects: list[Suspect], excess_s: float) -> Suspect | None:
    """Return the first of the ordered suspects, if it explains enough of the excess."""
    if not suspects or not suspects[0].is_notable or suspects[0].saved_seconds < _NAMED_SHARE * excess_s:
        return None
    return _with_text(suspects[0])


def _over_steps(paths: list[StepPath]) -> tuple[float, list[Suspect], Suspect | None]:
    """Return the excess per step, the suspects over all steps and the culprit: the unit that was slow repeatedly."""
    count = len(paths)
    excess_s = sum(path.excess_seconds for path in paths) / count
    step_s = sum(path.end_ns - path.start_ns for path in paths) / 1e9 / count
    every = [one for path in paths for one in path.suspects]
    seen = Counter(one.lane_id for one in every if one.is_notable)
    found = [
        msgspec.structs.replace(one, step_seconds=step_s, steps=seen[one.lane_id]) for one in _by_unit(every, count)
    ]
    culprit = _culprit(found, excess_s)
    if culprit is not None and 2 * culprit.steps < count:
        culprit = None  # a different one each time: the data is the cause, not a machine
    return excess_s, _notable(found), culprit
