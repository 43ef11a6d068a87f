"""The answer about the critical path: segments, suspects, and how the suspects of several states or steps add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from rl_insight.diagnosis.robust import median
from rl_insight.schema.names import process_name
from rl_insight.words import seconds_text

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


def by_unit(suspects: Iterable[Suspect], steps: int) -> list[Suspect]:
    """Return one suspect per unit with its saving per step, largest saving first."""
    units: dict[int, list[Suspect]] = {}
    for one in suspects:
        units.setdefault(one.lane_id, []).append(one)
    return sorted((_merged(seen, steps) for seen in units.values()), key=lambda one: -one.saved_seconds)


def notable(suspects: list[Suspect]) -> list[Suspect]:
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


def culprit_of(suspects: list[Suspect], excess_s: float) -> Suspect | None:
    """Return the first of the ordered suspects, if it explains enough of the excess."""
    if not suspects or not suspects[0].is_notable or suspects[0].saved_seconds < _NAMED_SHARE * excess_s:
        return None
    return _with_text(suspects[0])


def over_steps(paths: list[StepPath]) -> tuple[float, list[Suspect], Suspect | None]:
    """Return the excess per step, the suspects over all steps and the culprit: the unit that was slow repeatedly."""
    count = len(paths)
    excess_s = sum(path.excess_seconds for path in paths) / count
    step_s = sum(path.end_ns - path.start_ns for path in paths) / 1e9 / count
    every = [one for path in paths for one in path.suspects]
    seen = Counter(one.lane_id for one in every if one.is_notable)
    found = [
        msgspec.structs.replace(one, step_seconds=step_s, steps=seen[one.lane_id]) for one in by_unit(every, count)
    ]
    culprit = culprit_of(found, excess_s)
    if culprit is not None and 2 * culprit.steps < count:
        culprit = None  # a different one each time: the data is the cause, not a machine
    return excess_s, notable(found), culprit
