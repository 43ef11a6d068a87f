"""The reward of a run: a metric of its framework, or the mean over its sessions."""

from __future__ import annotations

from typing import Final

from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.step_counters import normalized

REWARDS: Final = (
    "critic/rewards/mean", "critic/score/mean", "reward", "reward_mean", "mean_reward", "reward/avg_raw_reward",
    "rollout/reward", "ppo_actor/task_reward/avg", "rollout/raw_reward", "reward/all/mean", "rollout/reward_mean",
    "rewards/mean", "objective/scores", "episode_reward_mean",
)  # fmt: skip
"""Framework metrics of the mean reward of a step, by preference."""

_GAUGES = """
    SELECT DISTINCT name FROM series
    WHERE kind = 'gauge' AND (contains(lower(name), 'reward') OR contains(lower(name), 'score'))
"""
_LATEST = """
    SELECT avg(value) FROM (
        SELECT arg_max(value, time_ns) AS value FROM sample_data
        WHERE series_id IN (SELECT series_id FROM series WHERE name = $name AND kind = 'gauge') AND isfinite(value)
        GROUP BY series_id
    )
"""
_OF_SESSIONS = """
    SELECT avg(reward) FROM sessions WHERE isfinite(reward) AND step IS NOT DISTINCT FROM (
        SELECT max(step) FROM sessions WHERE isfinite(reward)
    )
"""


def reward_metric(cursor: Cursor) -> str | None:
    """Return the name of the gauge of the mean reward; None if the run has none."""
    order = {normalized(name): place for place, name in enumerate(REWARDS)}
    plain = {name: normalized(name).removeprefix("train_") for (name,) in cursor.execute(_GAUGES).fetchall()}
    known = [(order[text], name) for name, text in plain.items() if text in order]
    return min(known)[1] if known else None


def latest_reward(cursor: Cursor) -> float | None:
    """Return the latest mean reward: from the metric, else from the sessions of the last step; None if unknown."""
    metric = reward_metric(cursor)
    sql, given = (_OF_SESSIONS, {}) if metric is None else (_LATEST, {"name": metric})
    ((found,),) = cursor.execute(sql, given).fetchall()
    return None if found is None else float(found)
