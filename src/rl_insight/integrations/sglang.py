"""SGLang: scheduler metrics, weight updates and sleep, through its plugin entry point `sglang.srt.plugins`.

SGLang calls `plugin` in the launcher, the schedulers and the detokenizer. Without a known server it does nothing. It
patches classes when SGLang imports them, so that no process imports anything because of us.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import Arguments, around, before, between, on_import, quiet
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.monitor import default_monitor as monitor

LANE = "engine"
GAUGES = (
    "num_running_reqs", "num_queue_reqs", "gen_throughput", "cache_hit_rate", "token_usage", "full_token_usage",
    "num_used_tokens", "num_retracted_reqs", "num_paused_reqs", "spec_accept_length", "spec_accept_rate", "utilization",
    "fwd_occupancy", "is_cuda_graph", "lora_pool_utilization",
)  # fmt: skip
"""Scheduler statistics to record, as `sglang:<name>`."""
UPDATES = (
    "update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor",
    "update_weights_from_ipc",
)  # fmt: skip
_UPDATERS = {
    "sglang.srt.managers.scheduler_components.weight_updater": "SchedulerWeightUpdaterManager",
    "sglang.srt.managers.scheduler_update_weights_mixin": "SchedulerUpdateWeightsMixin",
}
"""Classes that update the scheduler's weights, in current and in older releases."""
_COLLECTORS = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")


@quiet("the SGLang plug-in")
def plugin() -> None:
    """Record SGLang's schedulers once they are imported. Never raises."""
    if not is_wanted():
        return
    for name in _UPDATERS:
        on_import(name, _patch_updater)
    for name in _COLLECTORS:
        on_import(name, _patch_collector)


def _patch_updater(module: ModuleType) -> None:
    owner = getattr(module, _UPDATERS[module.__name__])
    for name in UPDATES:
        if hasattr(owner, name):
            around(owner, name, lambda _call: _state("update_weights"))
    between(
        owner,
        ("release_memory_occupation", "resume_memory_occupation"),
        lambda _call: _state("sleep"),
        in_any_thread=True,
    )


def _state(name: str) -> Any:
    ensure_started("sglang", "engine", role="engine")
    return monitor.trace_state(name, LANE)


def _patch_collector(module: ModuleType) -> None:
    before(module.SchedulerMetricsCollector, "log_stats", _record)


def _record(call: Arguments) -> None:
    labels = {str(key): str(value) for key, value in (getattr(call["self"], "labels", None) or {}).items()}
    rank = labels.get("tp_rank", "")
    identity = {"role": "engine", "rank": int(rank) if rank.isdecimal() else None}
    ensure_started("sglang", labels.get("model_name") or "engine", **identity)
    stats = call["stats"]
    for name in GAUGES:
        value = getattr(stats, name, None)
        value = getattr(value, "total", value)  # queues also have counts by priority
        if isinstance(value, (int, float)) and not math.isnan(value):  # SGLang uses NaN for "not known yet"
            monitor.metric_gauge(f"sglang:{name}", value, **labels)
