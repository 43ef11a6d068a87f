"""Which metric shows a quantity of a run, and in which order metrics are of interest."""

import doctest

import pytest

from rl_insight.hardware.quantities import QUANTITIES
from rl_insight.metrics import canonical
from rl_insight.metrics.canonical import CANONICAL, canonical_name, interest, is_hardware, quantity_metrics
from rl_insight.schema.exporters import AMD_GPU, ASCEND_NPU, NVIDIA_DCGM, RAY_NODE


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


def test_a_time_of_day_is_of_less_interest_than_any_value():
    assert interest("agent_loop_first_turn_unixtime") > interest("queue_depth")


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


@pytest.mark.parametrize(
    "name",
    ["process_reward_mean", "process_score", "process_supervision_loss", "process_iou", "processed_tokens"],
)
def test_a_metric_of_process_rewards_is_not_hardware(name):
    assert not is_hardware(name)
    assert interest(name) < interest("gpu_power_watts")


@pytest.mark.parametrize(
    "name",
    [
        *(quantity.metric for quantity in QUANTITIES.values()),
        *(name for mapping in (AMD_GPU, ASCEND_NPU, NVIDIA_DCGM, RAY_NODE) for name in mapping.series),
        "gpu_info",
        "node_load1",
        # Prometheus client libraries
        "process_cpu_seconds_total", "process_open_fds", "process_max_fds", "process_virtual_memory_bytes",
        "process_virtual_memory_max_bytes", "process_start_time_seconds", "process_heap_bytes",
        "process_network_receive_bytes_total",
        # OpenTelemetry and psutil
        "process_cpu_time", "process_memory_usage", "process_disk_io", "process_thread_count", "process_paging_faults",
        "process_open_file_descriptor_count", "process_cpu_percent", "process_memory_rss", "process_num_threads",
        "process_io_counters",
    ],
)  # fmt: skip
def test_metrics_of_machines_and_processes_are_hardware(name):
    assert is_hardware(name)
