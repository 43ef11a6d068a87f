"""SGLang: scheduler metrics, weight updates and sleep, through its plug-in entry point `sglang.srt.plugins`.

SGLang calls `plugin` in the launcher, the schedulers and the detokenizer. Where no server is known it does nothing. It
patches the classes when SGLang imports them, so no process imports anything because of it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, before, between, on_import, quiet
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.monitor import default_monitor as monitor

LANE = "engine"
GAUGES = (
    "num_running_reqs", "num_queue_reqs", "gen_throughput", "cache_hit_rate", "token_usage", "full_token_usage",
    "num_used_tokens", "num_retracted_reqs", "num_paused_reqs", "spec_accept_length", "spec_accept_rate", "utilization",
    "fwd_occupancy", "is_cuda_graph", "lora_pool_utilization",
)  # fmt: skip
"""Statistics of a scheduler that are recorded, as `sglang:<name>`."""
UPDATES = (
    "update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor",
    "update_weights_from_ipc",
)  # fmt: skip
_UPDATERS = {
    "sglang.srt.managers.scheduler_components.weight_updater": "SchedulerWeightUpdaterManager",
    "sglang.srt.managers.scheduler_update_weights_mixin": "SchedulerUpdateWeightsMixin",
}
"""Where the scheduler takes new weights, in current and in older releases."""
_COLLECTORS = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")


@quiet("the SGLang plug-in")
def plugin() -> None:
    """Record what SGLang's schedulers do, from the moment on that they are imported. Never raises."""
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


def _record(call: Mapping[str, Any]) -> None:
    labels = {str(key): str(value) for key, value in (getattr(call["self"], "labels", None) or {}).items()}
    ensure_started("sglang", labels.get("model_name") or "engine", role="engine", rank=_rank(labels))
    stats = call["stats"]
    for name in GAUGES:
        value = getattr(stats, name, None)
        value = getattr(value, "total", value)  # the queues also know their parts by priority
        if isinstance(value, (int, float)) and not math.isnan(value):  # SGLang's word for "not known yet"
            monitor.metric_gauge(f"sglang:{name}", value, **labels)


def _rank(labels: Mapping[str, str]) -> int | None:
    rank = labels.get("tp_rank", "")
    return int(rank) if rank.isdecimal() else None
