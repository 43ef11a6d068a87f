"""The stat logger that vLLM loads through `vllm.stat_logger_plugins`: the statistics of each engine iteration.

Metrics have the names and the label `engine` of vLLM's Prometheus endpoint, so that dashboards and diagnosis rules work
with both. Statistics that a release of vLLM lacks are skipped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from rl_insight.integrations.hooks import quiet, report_once
from rl_insight.integrations.starting import ensure_started
from rl_insight.monitor import default_monitor as monitor

_WHAT = "the metrics of vLLM"
_REQUEST_HISTOGRAMS = (
    ("e2e_latency", "vllm:e2e_request_latency_seconds"),
    ("queued_time", "vllm:request_queue_time_seconds"),
    ("prefill_time", "vllm:request_prefill_time_seconds"),
    ("decode_time", "vllm:request_decode_time_seconds"),
    ("inference_time", "vllm:request_inference_time_seconds"),
    ("mean_time_per_output_token", "vllm:request_time_per_output_token_seconds"),
    ("num_prompt_tokens", "vllm:request_prompt_tokens"),
    ("num_generation_tokens", "vllm:request_generation_tokens"),
)
"""Fields of a finished request, and their histograms."""
_SCHEDULER_COUNTERS = (
    ("prefix_cache_stats", "queries", "vllm:prefix_cache_queries"),
    ("prefix_cache_stats", "hits", "vllm:prefix_cache_hits"),
    ("spec_decoding_stats", "num_drafts", "vllm:spec_decode_num_drafts"),
    ("spec_decoding_stats", "num_draft_tokens", "vllm:spec_decode_num_draft_tokens"),
    ("spec_decoding_stats", "num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"),
    # with `--enable-mfu-metrics`
    ("perf_stats", "num_flops_per_gpu", "vllm:estimated_flops_per_gpu_total"),
    ("perf_stats", "num_read_bytes_per_gpu", "vllm:estimated_read_bytes_per_gpu_total"),
    ("perf_stats", "num_write_bytes_per_gpu", "vllm:estimated_write_bytes_per_gpu_total"),
)
"""Parts of the scheduler's statistics, their fields, and the corresponding counters."""
_ITERATION_COUNTERS = (
    ("num_prompt_tokens", "vllm:prompt_tokens"),
    ("num_generation_tokens", "vllm:generation_tokens"),
    ("num_preempted_reqs", "vllm:num_preemptions"),
    ("num_corrupted_reqs", "vllm:corrupted_requests"),
)
_SOURCES = (
    ("computed", "local_compute"),
    ("local_cache_hit", "local_cache_hit"),
    ("external_kv_transfer", "external_kv_transfer"),
)
"""Where prompt tokens came from: vLLM's field, and its value of the label `source`."""
_EVICTION_HISTOGRAMS = (
    ("lifetime_seconds", "vllm:kv_block_lifetime_seconds"),
    ("idle_seconds", "vllm:kv_block_idle_before_evict_seconds"),
)
_SLEEP_STATES = {(1, 1): "weights_offloaded", (1, 2): "discard_all"}


def _until_failure(method: Callable[..., None]) -> Callable[..., None]:
    """Decorate a method to report its first failure and to do nothing from then on: vLLM calls it per iteration."""

    @functools.wraps(method)
    def call(self: InsightStatLogger, *args: Any, **kwargs: Any) -> None:
        if not self.has_failed:
            try:
                method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  # the engine must run as if we were not here
                self.has_failed = True
                report_once(_WHAT, error)

    return call


class InsightStatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM may not be installed where types are checked
    """Records one engine; its methods never raise."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._labels: dict[str, Any] = {"engine": str(engine_index)}
        self.has_failed = False
        self._cache = getattr(vllm_config, "cache_config", None)
        self._start(vllm_config)

    @_until_failure
    def _start(self, vllm_config: Any) -> None:
        model = getattr(getattr(vllm_config, "model_config", None), "served_model_name", None)
        if isinstance(model, str):
            self._labels["model_name"] = model
        ensure_started("vllm", str(model or "engine"), role="engine")

    @_until_failure
    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
        **_later: Any,
    ) -> None:
        """Record one iteration of the engine."""
        if scheduler_stats is not None:
            self._record_scheduler(scheduler_stats)
        if iteration_stats is not None:
            self._record_iteration(iteration_stats)

    @_until_failure
    def log_engine_initialized(self) -> None:
        """Record that the engine is ready and awake, with the size of its KV cache."""
        self.record_sleep_state(0, 0)
        sizes = {name: getattr(self._cache, name, None) for name in ("num_gpu_blocks", "block_size", "cache_dtype")}
        known = {name: value for name, value in sizes.items() if value is not None}
        monitor.trace_event("engine_initialized", **self._labels, **known)

    def log(self) -> None:
        """Do nothing: records are sent in the background."""

    @quiet(_WHAT)
    def record_sleep_state(self, is_awake: int = 0, level: int = 0) -> None:
        """Record whether the engine is asleep; despite the argument's name, vLLM passes 1 if it is."""
        state = _SLEEP_STATES.get((is_awake, level), "awake" if not is_awake else "")
        for name in ("awake", *_SLEEP_STATES.values()):
            monitor.metric_gauge("vllm:engine_sleep_state", int(name == state), sleep_state=name, **self._labels)

    def _record_scheduler(self, stats: Any) -> None:
        labels = self._labels
        by_reason = {"capacity": stats.num_waiting_reqs, "deferred": getattr(stats, "num_skipped_waiting_reqs", 0)}
        monitor.metric_gauge("vllm:num_requests_running", stats.num_running_reqs, **labels)
        monitor.metric_gauge("vllm:num_requests_waiting", sum(by_reason.values()), **labels)
        for reason, requests in by_reason.items():
            monitor.metric_gauge("vllm:num_requests_waiting_by_reason", requests, reason=reason, **labels)
        monitor.metric_gauge("vllm:kv_cache_usage_perc", stats.kv_cache_usage, **labels)
        for part, field, name in _SCHEDULER_COUNTERS:
            self._count(name, getattr(getattr(stats, part, None), field, 0))
        for eviction in getattr(stats, "kv_cache_eviction_events", None) or ():
            self._observe_fields(eviction, _EVICTION_HISTOGRAMS)
            self._observe("vllm:kv_block_reuse_gap_seconds", getattr(eviction, "reuse_gaps_seconds", ()))

    def _record_iteration(self, stats: Any) -> None:
        for field, name in _ITERATION_COUNTERS:
            self._count(name, getattr(stats, field, 0))
        prompts = getattr(stats, "prompt_token_stats", None)
        if prompts is not None:
            for field, source in _SOURCES:
                self._count("vllm:prompt_tokens_by_source", getattr(prompts, field, 0), source=source)
            self._count("vllm:prompt_tokens_cached", getattr(prompts, "cached_tokens", 0))
            computed = getattr(prompts, "computed", 0) + stats.num_generation_tokens
            self._observe("vllm:iteration_tokens_total", (computed,))
        self._observe("vllm:time_to_first_token_seconds", getattr(stats, "time_to_first_tokens_iter", ()))
        self._observe("vllm:inter_token_latency_seconds", getattr(stats, "inter_token_latencies_iter", ()))
        for request in stats.finished_requests:
            self._count("vllm:request_success", 1, finished_reason=str(request.finish_reason))
            self._observe_fields(request, _REQUEST_HISTOGRAMS)
            cached = getattr(request, "num_cached_tokens", None)
            if cached is not None:
                computed = request.num_prompt_tokens - max(cached, 0)
                self._observe("vllm:request_prefill_kv_computed_tokens", (computed,))

    def _count(self, name: str, amount: float, **more: str) -> None:
        if amount:
            monitor.metric_count(name, amount, **self._labels, **more)

    def _observe_fields(self, stats: Any, names: Iterable[tuple[str, str]]) -> None:
        for field, name in names:
            value = getattr(stats, field, None)
            if value is not None:
                self._observe(name, (value,))

    def _observe(self, name: str, values: Iterable[float]) -> None:
        for value in values:
            monitor.metric_histogram(name, value, **self._labels)
