"""What defines the steps of a run, as functions that stored queries and live diagnosis share.

The leading role is the trainer, by whatever name. A step starts with the first record of this role with the step's
number and lasts until the role starts the next one. The last step of a generation of processes (see `generations`)
lasts until the last record of its steps, unless the generation is still running.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from rl_insight.intake import silence_ns
from rl_insight.schema.names import normalized

LEADS: Final = 2
"""The `leadership` of roles that are named like a trainer."""
TOGETHER_NS: Final = 200_000_000
"""Metrics within this time were logged by one call: those around a step counter belong to its step."""
_SECOND = 1_000_000_000
_LONGEST_SILENCE_NS = 60 * _SECOND
_OVERLAP = 0.05
"""A role whose steps overlap by a larger share works on several steps at once: it does not lead."""
_ABOUT = 0.95
_LEADING = re.compile(r"train|learn|driver|controller|actor|policy|main")
_FOLLOWING = re.compile(r"rollout|generat|infer|engine|vllm|sglang|tool|sandbox|env|reward|judge|verif|scrape|default")

Extent = tuple[int, int]
"""When a role recorded a step: its first start and its last end."""
StepKey = TypeVar("StepKey", bound=Hashable)


@lru_cache(maxsize=1024)
def leadership(role: str) -> int:
    """Return how likely a role leads the steps, judging by its name: 2 likely, 1 possible, 0 unlikely.

    >>> leadership("trainer"), leadership("worker"), leadership("rollout")
    (2, 1, 0)
    """
    text = normalized(role)
    if _FOLLOWING.search(text):
        return 0
    return LEADS if _LEADING.search(text) else 1


def leading_role(steps: Mapping[str, Mapping[StepKey, Extent]]) -> str:
    """Return the leading role of those that recorded steps: named like a trainer, and working on one step at a time.

    Of several such roles, the one whose steps cover the most time leads: a driver that calls ranks covers theirs. Of
    roles that cover about the same time, the first by name leads. The steps that all of them have are compared, so that
    the choice does not change with each record.

    >>> leading_role({"rollout": {0: (0, 5)}, "worker": {0: (0, 9), 1: (5, 12)}, "zeta": {0: (0, 5), 1: (5, 9)}})
    'zeta'
    >>> leading_role({"actor": {0: (6, 9), 1: (16, 19)}, "driver": {0: (0, 10), 1: (10, 20)}})
    'driver'
    """
    best = max(map(leadership, steps))
    candidates = [role for role in steps if leadership(role) == best]
    if len(candidates) == 1:
        return candidates[0]
    common = set[StepKey].intersection(*({*steps[role]} for role in candidates))
    compared = {role: [steps[role][key] for key in common or steps[role]] for role in candidates}
    candidates = [role for role in candidates if _overlap(compared[role]) <= _OVERLAP] or candidates
    covered = {role: sum(last_ns - first_ns for first_ns, last_ns in compared[role]) for role in candidates}
    most = max(covered.values())
    return min(role for role in candidates if covered[role] >= _ABOUT * most)


def _overlap(extents: Iterable[Extent]) -> float:
    """Return the share of its time in which a role worked on more than one step."""
    ordered = sorted(extents)
    total_ns = max(last_ns for _, last_ns in ordered) - ordered[0][0]
    overlap = sum(max(0, last_ns - after_ns) for (_, last_ns), (after_ns, _) in pairwise(ordered))
    return overlap / max(1, total_ns)


def by_leadership(roles: Iterable[str], leader: str) -> list[str]:
    """Return roles in the order in which they show where the time of a step went, the leading role first.

    >>> by_leadership(["rollout", "worker", "critic"], "trainer")
    ['critic', 'worker', 'rollout']
    """
    return sorted(roles, key=lambda role: (role != leader, -leadership(role), role))


class Lifetime(NamedTuple):
    """When a process recorded steps; aligned nanoseconds."""

    process: int
    rank: int | None
    started_ns: int
    first_ns: int
    last_ns: int
    running_until_ns: int | None
    """See `running_until_ns`; None for a process that has exited."""


def running_until_ns(last_seen_ns: int, heartbeat_s: float, now_ns: int) -> int:
    """Return until when a process that has not exited counts as running, as of a time of the server's clock.

    A process may still report within its silence; senders that rarely report get a minute. If it has not, it was killed
    when it was last seen, so one that replaced it seconds later resumed the run.

    >>> [running_until_ns(100 * _SECOND, 5.0, now * _SECOND) // _SECOND for now in (110, 130)]
    [115, 100]
    """
    until_ns = last_seen_ns + min(silence_ns(heartbeat_s), _LONGEST_SILENCE_NS)
    return until_ns if now_ns <= until_ns else last_seen_ns


def generations(lifetimes: Iterable[Lifetime]) -> dict[int, int]:
    """Return the generation of each process of a role.

    Processes that started after all earlier ones of their role had ended are a new generation: the run resumed. A
    process that is still heard from has not ended, so one that starts late or replaces a single rank joins its
    generation. A process whose rank was taken over has ended.

    >>> first, second = Lifetime(1, 0, 0, 0, 50, None), Lifetime(2, 1, 0, 0, 30, 75)
    >>> generations([first, second, Lifetime(3, 0, 55, 60, 90, None)])
    {1: 0, 2: 0, 3: 0}
    >>> generations([first, second, Lifetime(3, 0, 55, 60, 90, None), Lifetime(4, 1, 55, 61, 90, None)])
    {1: 0, 2: 0, 3: 1, 4: 1}
    """
    ordered = sorted(lifetimes, key=lambda one: (one.first_ns, one.process))
    newest: dict[int | None, int] = {}
    for one in ordered:
        newest[one.rank] = max(newest.get(one.rank, one.started_ns), one.started_ns)
    found: dict[int, int] = {}
    generation, ended_ns = 0, None
    for one in ordered:
        if ended_ns is not None and one.first_ns > ended_ns:
            generation += 1
        found[one.process] = generation
        is_replaced = one.rank is not None and one.started_ns < newest[one.rank]
        end_ns = one.last_ns if is_replaced else max(one.last_ns, one.running_until_ns or one.last_ns)
        ended_ns = end_ns if ended_ns is None else max(ended_ns, end_ns)
    return found


def first_start_ns(end_ns: int, reported_s: float | None, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> int:
    """Return when the first step of a counter started, from the step time that the framework reports and from spans.

    The framework measures that time before it logs, so a span that started shortly before and was still running is part
    of the step. Without a reported time, the step starts with the first span.

    >>> spans = np.array([1, 9]) * 10**8, np.array([4, 90]) * 10**8
    >>> first_start_ns(9 * 10**9, 8.0, *spans), first_start_ns(9 * 10**9, None, *spans)
    (900000000, 100000000)
    """
    if reported_s is None:
        return min(int(starts.min()), end_ns) if starts.size else end_ns
    start_ns = end_ns - int(reported_s * _SECOND)
    is_running = (starts >= start_ns - TOGETHER_NS) & (starts <= start_ns) & (ends > start_ns)
    return int(starts[is_running].min()) if is_running.any() else start_ns
