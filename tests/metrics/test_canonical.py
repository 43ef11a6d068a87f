"""Which metric shows a quantity of a run, and in which order metrics are of interest."""

import doctest

import pytest

from rl_insight.metrics import canonical
from rl_insight.metrics.canonical import CANONICAL, canonical_name, interest, quantity_metrics


def test_doctests():
    assert doctest.testmod(canonical).failed == 0


@pytest.mark.parametrize(
    ("quantity", "names", "expected"),
    [
        ("reward", ["val/reward_mean", "critic/rewards/mean"], "critic/rewards/mean"),
        ("reward", ["critic/score/mean", "critic/rewards/mean"], "critic/rewards/mean"),
        ("reward", ["val-core/gsm8k/reward/mean@1", "eval/reward_mean"], None),
        ("reward", ["train/reward", "rollout/reward"], "train/reward"),
        ("reward", ["reward_std", "reward_by_task", "reward_mean"], "reward_mean"),
        ("reward", ["critic_rewards_mean", "loss"], "critic_rewards_mean"),
        ("reward", ["task_reward_mean", "math_task_reward_mean", "reward_by_task"], "task_reward_mean"),
        ("reward", ["rewards_by_task", "rewards/format/mean"], "rewards/format/mean"),
        ("reward", ["episode_return_mean", "loss"], "episode_return_mean"),
        ("reward", ["reward_std", "reward_max", "reward_time_seconds", "frac_reward_zero_std"], None),
        ("reward", ["timing_s/reward", "actor/reward_kl_penalty"], None),
        ("throughput", ["throughput_tokens_per_s", "tool_rate"], "throughput_tokens_per_s"),
        ("throughput", ["vllm:avg_generation_throughput_toks_per_s", "perf_throughput"], "perf_throughput"),
        ("throughput", ["samples_per_second"], "samples_per_second"),
        ("staleness", ["staleness_max", "staleness_mean"], "staleness_mean"),
        ("staleness", ["staleness_max"], "staleness_max"),
    ],
)
def test_one_metric_shows_a_quantity_of_the_run(quantity, names, expected):
    assert quantity_metrics(names).get(quantity) == expected
    assert quantity_metrics(reversed(names)).get(quantity) == expected


def test_names_are_listed_under_one_canonical_name():
    every = [name for names in CANONICAL.values() for name in names]
    assert [name for name in every if name not in CANONICAL[canonical_name(name)]] == []


def test_rewards_come_first_and_hardware_last():
    names = ["gpu_power_watts", "queue_depth", "policy_kl", "throughput", "reward_mean", "actor/loss", "step_time"]
    assert sorted(names, key=interest) == [
        "reward_mean",
        "step_time",
        "throughput",
        "actor/loss",
        "policy_kl",
        "queue_depth",
        "gpu_power_watts",
    ]
