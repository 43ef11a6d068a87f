"""Canonical metric names for the names that frameworks use, and which metric shows a quantity of a run.

Names are compared in lower case, with everything but letters and digits mapped to `_` and without the prefixes that
trackers add, so that `actor/entropy`, `actor_entropy` and `train/actor_entropy` are one metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, Literal

from rl_insight.schema.names import normalized

_PREFIXES = ("timing_train_", "train_")

CANONICAL: Final[Mapping[str, tuple[str, ...]]] = {
    # Time
    "step_time": (
        "timing_s/step", "perf/time_per_step", "step_time", "step_time_seconds", "step_time_s", "timing/step",
        "total_step_time", "perf/step_time", "time/step", "timing/step_total",
    ),
    "generation_time": (
        "timing_s/gen", "timing/generate", "timing/wait_for_generation_buffer", "generation", "exposed_generation",
        "perf/rollout_time", "time/wait_for_batch", "timing/generation",
        "profiling/Time taken: GRPOTrainer.vLLM.generate",
    ),
    "update_time": (
        "timing_s/update_actor", "timing/policy_train", "train_step", "policy_training", "perf/actor_train_time",
        "time/forward_backward", "timing/ppo_train", "forward_time_s",
    ),
    "sync_time": (
        "timing_s/update_weights", "timing_s/param_sync", "timing_s/sync_rollout_weights", "timing/sync_weights",
        "update_weights", "weight_sync", "weight_sync_time_s", "perf/update_weights_time", "time/broadcast_weights",
        "timing/broadcast", "prepare_for_generation/transfer_and_update_weights",
    ),
    "reward_time": (
        "timing_s/reward", "agent_loop/compute_score/mean", "reward_calculation", "scoring_time_s", "timing/reward",
    ),
    "log_prob_time": (
        "timing_s/old_log_prob", "timing_s/ref", "timing/fwd_logprobs_values_reward", "recompute_logp", "ref_logp",
        "policy_and_reference_logprobs", "perf/log_probs_time", "perf/ref_log_probs_time", "timing/make_experience",
    ),
    "checkpoint_time": (
        "timing_s/save_checkpoint", "time/save_ckpt", "timing/save_checkpoints", "checkpoint_for_recover",
    ),
    "validation_time": ("timing_s/testing", "timing/eval", "idle/validation", "time/eval"),
    "data_time": ("timing/data_loading", "load_bcast", "time/load_data", "data_processing", "timing_s/data"),
    "switch_time": (
        "timing_s/switch_to_trainer", "timing_s/switch_to_rollout", "sleep_time", "wake_up_time", "perf/sleep_time",
        "perf/wake_up_time", "offload_before_refit",
    ),
    # Learning
    "reward": (
        "critic/rewards/mean", "critic/score/mean", "reward", "reward_mean", "mean_reward", "reward/avg_raw_reward",
        "rollout/reward", "ppo_actor/task_reward/avg", "rollout/raw_reward", "reward/all/mean", "rollout/reward_mean",
        "rewards/mean", "objective/scores", "episode_reward_mean",
    ),
    "held_out": ("eval/all/avg_score", "eval-rollout/reward", "validation/accuracy", "val/accuracy", "eval/score"),
    "loss": ("loss", "actor/pg_loss", "policy_loss", "actor/loss", "pg_loss", "policy/policy_loss", "ppo_actor/loss"),
    "critic_loss": ("critic/vf_loss", "value_loss", "critic/loss"),
    "gradient_norm": (
        "actor/grad_norm", "grad_norm", "optim/grad_norm", "policy/grad_norm", "policy/raw_grad_norm",
        "ppo_actor/update/grad_norm", "gradient_norm",
    ),
    "learning_rate": ("lr", "actor/lr", "learning_rate", "optim/lr", "policy/lr", "actor/learning_rate"),
    "entropy": (
        "actor/entropy", "actor/entropy_loss", "entropy", "policy/policy_entropy", "ppo_actor/update/entropy/avg",
        "approx_entropy", "entropy_loss", "entropy/all/mean", "trainer_entropy", "policy_entropy",
    ),
    "kl": (
        "actor/kl_loss", "actor/ppo_kl", "actor/reward_kl_penalty", "kl", "kl_mean", "loss/avg_kl", "policy/policy_kl",
        "ppo_actor/update/approx_kl", "kl_loss", "ppo_kl", "approx_kl", "objective/kl",
    ),
    "clip_fraction": (
        "actor/pg_clipfrac", "clip_ratio/region_mean", "clip_ratio", "policy/clip_ratio", "pg_clipfrac",
        "policy/ppo_clip_ratio", "clip_fraction", "clipfrac",
    ),
    "response_length": (
        "response_length/mean", "response_length_mean", "completions/mean_length", "generate/avg_num_tokens",
        "rollout/response_len/mean", "seq_len/all/mean", "mean_gen_tokens_per_sample", "completion_length",
        "rollout/response_length",
    ),
    "truncated_share": (
        "response_length/clip_ratio", "completions/clipped_ratio", "ppo_actor/no_eos_ratios/avg",
        "rollout/truncated_ratio", "is_truncated/all/mean", "rollout/truncated_rate", "truncation_rate",
    ),
    "dead_group_share": ("frac_reward_zero_std", "uniform_group_fraction", "zero_variance_fraction"),
    "mixed_group_share": ("baseline_reward/pct_mixed", "dynamic_filtering_pass_rate", "async/keep_rate"),
    "probability_difference": ("training/rollout_probs_diff_mean", "rollout_probs_diff_mean"),
    "logprob_difference": (
        "sampling/sampling_logp_difference/mean", "policy/rollout_train_logprobs_abs_diff_mean",
        "train_rollout_logprob_abs_diff", "token_mult_prob_error", "vllm_vs_local_logprob_diff_mean",
        "val/vllm_vs_local_logprob_diff_mean",
    ),
    "mismatch_kl": ("rollout_corr/kl", "rollout_corr/k3_kl", "gen_kl_error", "mismatch_kl/all/mean", "mismatch_kl"),
    "importance_weight": (
        "rollout_corr/rollout_is_mean", "ppo_actor/update/importance_weight/avg", "sampling_importance_ratio",
        "ppo_actor/update/behave_imp_weight/avg", "sampling/importance_sampling_ratio/mean", "importance_ratio_mean",
    ),
    "effective_sample_size": ("rollout_corr/rollout_is_eff_sample_size",),
    "repetition_share": ("rollout/repetition_frac", "repetition_frac", "repetition_rate"),
    "aborted_share": ("response/aborted_ratio", "aborted_ratio"),
    "explained_variance": ("critic/vf_explained_var", "critic/explained_var", "explained_variance"),
    "valid_share": ("valid_sample_ratio", "effective_batch_ratio"),
    "moe_violation": ("max_vio/mean",),
    # Freshness of samples
    "staleness_mean": (
        "training/off_policy/trajectory_staleness/mean", "async/staleness_mean", "avg_trajectory_age",
        "off_policy/mean", "staleness_mean", "fully_async/staleness_mean", "version_stats/mean",
    ),
    "staleness_max": (
        "training/off_policy/trajectory_staleness/max", "training/off_policy/trajectory_staleness_worst/max",
        "async/staleness_max", "off_policy/max", "staleness_max",
    ),
    "tool_failure_share": ("tools/failure_frequency", "invalid_tool_call_rate"),
    "sequence_length_max": ("global_seqlen/balanced_max",),
    "sequence_length_min": ("global_seqlen/balanced_min",),
    "tokens": ("perf/total_num_tokens", "total_num_tokens", "batch_tokens"),
    "throughput": (
        "perf/throughput", "throughput", "tokens_per_second", "trainer/tokens_per_second_per_gpu",
        "valid_tokens_per_sec_per_gpu", "perf/tokens_per_gpu_per_sec", "perf/actor_train_tok_per_s", "training_tok/s",
    ),
    # Engines
    "engine_running": ("vllm:num_requests_running", "sglang:num_running_reqs"),
    "engine_waiting": ("vllm:num_requests_waiting", "sglang:num_queue_reqs"),
    "engine_tokens": (
        "vllm:generation_tokens", "vllm:generation_tokens_total", "sglang:generation_tokens",
        "sglang:generation_tokens_total", "sglang:realtime_tokens_total", "sglang:realtime_tokens",
    ),
    "engine_preemptions": (
        "vllm:num_preemptions", "vllm:num_preemptions_total", "sglang:num_retracted_requests",
        "sglang:num_retracted_requests_total",
    ),
    "engine_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage"),
    "engine_prefix_hits": ("vllm:prefix_cache_hits", "vllm:prefix_cache_hits_total"),
    "engine_prefix_queries": ("vllm:prefix_cache_queries", "vllm:prefix_cache_queries_total"),
    "engine_hit_rate": ("sglang:cache_hit_rate", "prefix_cache_hit_rate"),
    "engine_awake": ("vllm:engine_sleep_state",),
    "gpu_errors": ("DCGM_FI_DEV_XID_ERRORS", "gpu_last_xid", "npu_chip_info_error_code"),
    "target_up": ("up",),
}  # fmt: skip
"""Canonical name to the names that frameworks and engines use for it, by preference."""


def _with_ray_names(names: tuple[str, ...]) -> list[str]:
    """Add the names that Ray gives vLLM's metrics; it exports a counter twice, so only with `_total`."""
    ray = [
        f"ray_{name.replace(':', '_')}" for name in names if name.startswith("vllm:") and f"{name}_total" not in names
    ]
    return [*names, *ray]


_BY_NAME: Final = {
    normalized(name): canonical for canonical, names in CANONICAL.items() for name in _with_ray_names(names)
}


def _without_prefixes(text: str) -> list[str]:
    """Return a normalized name, and without the prefix of a tracker."""
    return [text, *(text.removeprefix(prefix) for prefix in _PREFIXES if text.startswith(prefix))]


@lru_cache(maxsize=65_536)
def canonical_name(name: str) -> str | None:
    """Return the canonical name of a metric; None if it has none.

    >>> canonical_name("actor_entropy"), canonical_name("train/kl"), canonical_name("my_metric")
    ('entropy', 'kl', None)
    >>> canonical_name("ray_vllm_generation_tokens_total"), canonical_name("ray_vllm_generation_tokens")
    ('engine_tokens', None)
    """
    text = normalized(name)
    found = next((_BY_NAME[form] for form in _without_prefixes(text) if form in _BY_NAME), None)
    if found is None and text.startswith("profiling_time_taken_") and "reward" in text:
        return "reward_time"  # TRL times each reward function under the function's name
    if found is None and text.startswith(("val_", "val_core_", "eval_")) and text.endswith(_SCORES):
        return "held_out"
    return found


_SCORES = ("score", "accuracy", "acc", "reward", "reward_mean", "acc_mean", "mean_1", "pass_1", "best_1_mean")

Quantity = Literal["reward", "throughput", "staleness"]

_OTHER_NAMES: Final[Mapping[Quantity, tuple[str, tuple[str, ...]]]] = {
    "reward": (
        "reward",
        (
            r"(^|_)rewards?_?(mean|avg|average)$",
            r"rewards?_.*(mean|avg|average)",
            r"(score|return)s?_.*(mean|avg|average)",
            r"(^|_)rewards?(_|$)",
        ),
    ),
    "throughput": (
        "throughput",
        (
            r"tokens?_per_(s|sec|second)(_per_gpu)?$",
            r"throughput",
            r"(samples|sequences|episodes)_per_(s|sec|second)",
            r"(^|_)tgs$",
        ),
    ),
    "staleness": (
        "staleness_mean",
        (r"stale(ness)?_.*(mean|avg)", r"stale", r"off_?policy", r"(version|policy)_(lag|gap)"),
    ),
}
"""The canonical name of each quantity, and patterns of normalized names for metrics that no framework defines."""
_RELATED: Final = {"staleness_max": "staleness_mean"}
_NOT_A_MEAN = re.compile(r"(^|_)(std|var|variance|min|max|time|seconds?|s|ms|latency|counts?|total|errors?|kl)(_|$)")
"""Words in names of metrics about the reward that are not the reward."""


def _preference(name: str, quantity: Quantity) -> tuple[int, int, str] | None:
    """Return how well a metric shows a quantity, best first; None if it does not."""
    wanted, patterns = _OTHER_NAMES[quantity]
    known = canonical_name(name)
    text = normalized(name)
    if known == wanted:
        places = [normalized(one) for one in CANONICAL[wanted]]
        plain = next(form for form in _without_prefixes(text) if form in places)
        return -len(places) + places.index(plain), len(name), name
    if _RELATED.get(known or "", known) not in {None, wanted} or (quantity == "reward" and _NOT_A_MEAN.search(text)):
        return None
    place = next((place for place, pattern in enumerate(patterns) if re.search(pattern, text)), None)
    # Of several matches, the shortest is the most general.
    return None if place is None else (place, len(name), name)


def quantity_metrics(names: Iterable[str]) -> dict[Quantity, str]:
    """Return the gauge that shows each quantity of a run: one under a name that a framework defines, if there is one.

    >>> quantity_metrics(["val/reward_mean", "critic/rewards/mean", "perf/throughput", "actor/lr"])
    {'reward': 'critic/rewards/mean', 'throughput': 'perf/throughput'}
    """
    known = list(names)
    found: dict[Quantity, str] = {}
    for quantity in _OTHER_NAMES:
        ranked = [place for name in known if (place := _preference(name, quantity)) is not None]
        if ranked:
            found[quantity] = min(ranked)[-1]
    return found


_HARDWARE: Final = re.compile(
    r"(gpu|node|ray_node|npu_chip_info|DCGM_FI)_"
    # Of the namespace `process_`, only what process collectors report: `process_reward_mean` is a training metric.
    r"|process_(cpu|memory|resident|virtual|heap|num_threads|num_fds|open_fds|max_fds|start_time|network|disk|io"
    r"|context_switches|paging|uptime|open_file_descriptor|last_seen)(_|$)"
    r"|process_(thread_count|threads)$"
)
"""Metrics of the hardware monitor, accelerator and node exporters, and the process collectors of Prometheus clients,
psutil and OpenTelemetry."""
_INTERESTING: Final = tuple(
    re.compile(pattern)
    for pattern in (
        r"reward|score|return|accuracy",
        r"(^|_)step_time|time_seconds|time_per_step|timing_s_step$",
        r"throughput|tokens?_per|tok_per",
        r"loss",
        r"(^|_)kl(_|$)",
        r"entropy",
        r"grad_?norm|gradient_norm",
        r"length",
        r"(^|_)lr(_|$)|learning_rate",
    )
)

_TIMESTAMP: Final = re.compile(r"(^|_)(unix_?time|timestamp)(_|$)")


def is_hardware(name: str) -> bool:
    """Return whether a metric is about a machine or a process rather than about training, judging by its name.

    >>> [is_hardware(name) for name in ("gpu_power_watts", "process_resident_memory_bytes", "process_reward_mean")]
    [True, True, False]
    """
    return _HARDWARE.match(name) is not None


def interest(name: str) -> int:
    """Return the place of a metric in the order in which people look at metrics.

    Hardware, which has its view, and timestamps are last.

    >>> [interest(name) for name in ("reward_mean", "policy_kl", "queue_depth", "gpu_power_watts", "turn_unixtime")]
    [0, 4, 9, 10, 10]
    """
    text = normalized(name)
    if is_hardware(name) or _TIMESTAMP.search(text):
        return len(_INTERESTING) + 1
    return next((place for place, one in enumerate(_INTERESTING) if one.search(text)), len(_INTERESTING))
