"""Groups of samples that are compared with each other, as in GRPO, and how stale samples are.

A group is the samples of one `group_id` (by default a task) in one step. A group whose rewards are all equal is dead:
its advantages are zero, so nothing is learned from it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from rl_insight.store.queries.base import Cursor, checked_limit, conditions, structs

GroupOrder = Literal["step", "spread", "mean", "samples", "longest_s"]


class SampleGroup(msgspec.Struct, frozen=True):
    """The samples of one group in one step."""

    group_id: str
    step: int | None
    task_id: str | None
    """Of one of its samples."""
    samples: int
    open: int
    """Samples that have not ended."""
    rewarded: int
    """Samples with a reward; the figures below are about these."""
    mean: float | None
    spread: float | None
    """The population standard deviation of the rewards."""
    least: float | None
    most: float | None
    is_dead: bool
    """At least two rewards, all equal."""
    longest_s: float | None
    tokens: int | None
    """Of all samples together."""


class GroupStep(msgspec.Struct, frozen=True):
    """The groups of one step; only groups with at least two rewards count."""

    step: int
    groups: int
    dead: int
    mean: float | None
    """Of the rewards of all their samples."""
    spread: float | None
    """The mean of the groups' spreads."""


class GroupPage(msgspec.Struct, frozen=True):
    """A page of groups, the total count, and how many of them are dead."""

    total: int
    dead: int
    groups: list[SampleGroup]


class StaleCount(msgspec.Struct, frozen=True):
    """How many samples lag behind by a number of versions."""

    behind: int
    samples: int


class StaleStep(msgspec.Struct, frozen=True):
    """The age of the weights that generated the samples of one step."""

    step: int
    samples: int
    mean: float
    most: int


class Staleness(msgspec.Struct, frozen=True):
    """How many versions the samples of a run lag behind; the freshest sample is 0."""

    samples: int
    """Those with a step and a numeric model version."""
    mean: float | None
    most: int | None
    counts: list[StaleCount]
    """The freshest first."""
    steps: list[StaleStep]


_GROUPS = """
    SELECT group_id, step, any_value(task_id) AS task_id, count(*) AS samples,
        count(*) FILTER (status = 'pending') AS open,
        count(reward) FILTER (isfinite(reward)) AS rewarded,
        avg(reward) FILTER (isfinite(reward)) AS mean,
        stddev_pop(reward) FILTER (isfinite(reward)) AS spread,
        min(reward) FILTER (isfinite(reward)) AS least,
        max(reward) FILTER (isfinite(reward)) AS most,
        coalesce(rewarded > 1 AND least = most, false) AS is_dead,
        max(total_s) AS longest_s, sum(tokens)::BIGINT AS tokens
    FROM sessions WHERE group_id IS NOT NULL AND {where} GROUP BY group_id, step
"""
_FRAGMENTS = {
    "group_id": "group_id = $group_id",
    "task_id": "task_id = $task_id",
    "first_step": "step >= $first_step",
    "last_step": "step <= $last_step",
}
_PAGE = """
    SELECT * FROM ({groups}) WHERE samples >= $least_samples AND {dead}
    ORDER BY {order} {direction} NULLS LAST, group_id, step LIMIT $limit OFFSET $offset
"""
_COUNTS = "SELECT count(*), count(*) FILTER (is_dead) FROM ({groups}) WHERE samples >= $least_samples AND {dead}"
_STEPS = """
    SELECT step, count(*), count(*) FILTER (is_dead), sum(mean * rewarded) / sum(rewarded), avg(spread)
    FROM ({groups}) WHERE rewarded > 1 AND step IS NOT NULL GROUP BY step ORDER BY step
"""
_BEHIND = """
    WITH versions AS (
        SELECT step, try_cast(model_version AS BIGINT) AS version FROM sessions
        WHERE step IS NOT NULL AND regexp_full_match(model_version, '[0-9]{1,18}')
    )
    SELECT step, step - version - (SELECT min(step - version) FROM versions) AS behind, count(*)
    FROM versions GROUP BY ALL ORDER BY ALL
"""


def session_groups(
    cursor: Cursor,
    *,
    group_id: str | None = None,
    task_id: str | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
    dead: bool | None = None,
    least_samples: int = 2,
    order: GroupOrder = "step",
    descending: bool = True,
    limit: int = 200,
    offset: int = 0,
) -> GroupPage:
    """Return groups of samples, as GRPO compares them: those of one `group_id` (by default a task) in one step.

    A group whose rewards are all equal is dead: nothing is learned from it. `dead` selects only those, or only the
    others.
    """
    where, given = conditions(
        _FRAGMENTS, {"group_id": group_id, "task_id": task_id, "first_step": first_step, "last_step": last_step}
    )
    parts = {"groups": _GROUPS.format(where=where), "dead": "true" if dead is None else "is_dead = $dead"}
    given |= {"least_samples": least_samples} | ({} if dead is None else {"dead": dead})
    ((total, dead_groups),) = cursor.execute(_COUNTS.format(**parts), given).fetchall()
    sql = _PAGE.format(**parts, order=order, direction="DESC" if descending else "ASC")
    given |= {"limit": checked_limit(limit), "offset": offset}
    return GroupPage(total, dead_groups, structs(cursor, SampleGroup, sql, given))


def group_steps(cursor: Cursor, group_id: str | None = None, task_id: str | None = None) -> list[GroupStep]:
    """Return the groups of each step: how many there are, how many are dead, their rewards and spread."""
    where, given = conditions(_FRAGMENTS, {"group_id": group_id, "task_id": task_id})
    return structs(cursor, GroupStep, _STEPS.format(groups=_GROUPS.format(where=where)), given)


def staleness(cursor: Cursor) -> Staleness:
    """Return how many weight versions the samples lag behind, by step: the step minus the model version.

    Versions and steps of a framework may differ by a constant, so the freshest sample of the run counts as 0.
    """
    by_step: dict[int, dict[int, int]] = {}
    counts: dict[int, int] = {}
    for step, behind, samples in cursor.execute(_BEHIND).fetchall():
        by_step.setdefault(step, {})[behind] = samples
        counts[behind] = counts.get(behind, 0) + samples
    total = sum(counts.values())
    return Staleness(
        samples=total,
        mean=_mean(counts) if counts else None,
        most=max(counts, default=None),
        counts=[StaleCount(behind, counts[behind]) for behind in sorted(counts)],
        steps=[StaleStep(step, sum(some.values()), _mean(some), max(some)) for step, some in by_step.items()],
    )


def _mean(counts: dict[int, int]) -> float:
    return sum(behind * samples for behind, samples in counts.items()) / sum(counts.values())
