"""The reward of a run: a metric of its framework, or the mean over its sessions."""

from __future__ import annotations

from rl_insight.metrics.canonical import quantity_metrics
from rl_insight.store.queries.base import Cursor

_GAUGES = """
    SELECT DISTINCT name FROM series
    WHERE kind = 'gauge' AND regexp_matches(name, 'reward|score|return', 'i')
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
    return quantity_metrics(name for (name,) in cursor.execute(_GAUGES).fetchall()).get("reward")


def latest_reward(cursor: Cursor) -> float | None:
    """Return the latest mean reward: from the metric, else from the sessions of the last step; None if unknown."""
    metric = reward_metric(cursor)
    sql, given = (_OF_SESSIONS, {}) if metric is None else (_LATEST, {"name": metric})
    ((found,),) = cursor.execute(sql, given).fetchall()
    return None if found is None else float(found)
