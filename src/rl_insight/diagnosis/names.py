"""Canonical metric names for the names that frameworks use, and kinds of states.

Names are compared in lower case, with everything but letters and digits mapped to `_` and without the prefixes that
trackers add, so that `actor/entropy`, `actor_entropy` and `train/actor_entropy` are one metric.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal

from rl_insight.store.queries.rewards import REWARDS
from rl_insight.store.queries.step_counters import STEP_COUNTERS, STEP_TIMES, normalized

_PREFIXES = ("timing_train_", "train_")

CANONICAL: Final[Mapping[str, tuple[str, ...]]] = {
    # Time
    "step_time": STEP_TIMES,
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
    "reward": REWARDS,
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
    # Counters of steps
    "step_counter": (*STEP_COUNTERS, "train/step"),
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
"""Canonical name to the names that frameworks and engines use for it."""


def _with_ray_names(names: tuple[str, ...]) -> list[str]:
    """Add the names that Ray gives vLLM's metrics; it exports a counter twice, so only with `_total`."""
    ray = [
        f"ray_{name.replace(':', '_')}" for name in names if name.startswith("vllm:") and f"{name}_total" not in names
    ]
    return [*names, *ray]


_BY_NAME: Final = {
    normalized(name): canonical for canonical, names in CANONICAL.items() for name in _with_ray_names(names)
}


@lru_cache(maxsize=65_536)
def canonical_name(name: str) -> str | None:
    """Return the canonical name of a metric; None if no rule uses it.

    >>> canonical_name("actor_entropy"), canonical_name("train/kl"), canonical_name("my_metric")
    ('entropy', 'kl', None)
    >>> canonical_name("ray_vllm_generation_tokens_total"), canonical_name("ray_vllm_generation_tokens")
    ('engine_tokens', None)
    """
    text = normalized(name)
    found = _BY_NAME.get(text)
    for prefix in _PREFIXES:
        if found is None and text.startswith(prefix):
            found = _BY_NAME.get(text.removeprefix(prefix))
    if found is None and text.startswith("profiling_time_taken_") and "reward" in text:
        return "reward_time"  # TRL times each reward function under the function's name
    if found is None and text.startswith(("val_", "val_core_", "eval_")) and text.endswith(_SCORES):
        return "held_out"
    return found


_SCORES = ("score", "accuracy", "acc", "reward", "reward_mean", "acc_mean", "mean_1", "pass_1", "best_1_mean")

StateKind = Literal[
    "wait", "generate", "tool", "reward", "update", "sync", "checkpoint", "validation", "data", "log_prob", "work"
]

_SYNC = (
    r"(sync|broadcast|update|push|publish|transfer|refit|load|pull|receive)_?(rollout_)?(weight|param)"
    r"|(weight|param)s?_?(sync|transfer|update|broadcast)|(^|_)refit(_|$)"
)
_GENERATE = r"gen|generate|generation|generating|rollout|decode|prefill|sample|sampling|make_experience"
_UPDATE = r"update|train|train_batch|train_step|forward_backward|forward|backward|optimizer|optim|learn|ppo_train"
_PATTERNS: Final[tuple[tuple[StateKind, str], ...]] = (
    ("wait", r"(^|_)(wait|waiting|waits|idle|blocked|barrier|starved|paused|queued|pending)(_|$)"),
    ("checkpoint", r"checkpoint|ckpt|(^|_)save(_|$)"),
    ("validation", r"(^|_)(val|validate|validation|testing|test|eval|evaluate|evaluation)(_|$)"),
    ("sync", _SYNC),
    ("tool", r"tool|sandbox|(^|_)env(ironment)?(_|$)"),
    ("reward", r"reward|compute_score|(^|_)(score|scoring|verify|verifier|judge|grade)(_|$)"),
    ("log_prob", r"log_?prob|logp(_|$)"),
    ("data", r"(^|_)(data|dataloader|load_batch|load_data|data_loading|fetch_batch|get_batch)(_|$)"),
    ("generate", rf"(^|_)({_GENERATE})(_|$)"),
    ("update", rf"(^|_)({_UPDATE})(_|$)|actor_update|policy_train"),
)
_KINDS: Final = tuple((kind, re.compile(pattern)) for kind, pattern in _PATTERNS)


@lru_cache(maxsize=65_536)
def state_kind(name: str) -> StateKind:
    """Return the kind of a state, phase or span, by its name; `work` if the name does not indicate one.

    >>> [state_kind(name) for name in ("wait_for_samples", "update_weights", "update_actor", "vllm_generate", "thing")]
    ['wait', 'sync', 'update', 'generate', 'work']
    """
    text = normalized(name)
    for kind, pattern in _KINDS:
        if pattern.search(text):
            return kind
    return "work"


@lru_cache(maxsize=1024)
def is_rollout(role: str) -> bool:
    """Return whether a role generates samples, by its name."""
    return re.search(r"rollout|generat|infer|engine|vllm|sglang|sampler", normalized(role)) is not None
