"""The stat logger that vLLM loads through `vllm.stat_logger_plugins`: what each engine iteration says about itself.

Metrics have the names and the label `engine` of vLLM's Prometheus endpoint, so dashboards and diagnosis rules read them
alike. A release of vLLM without one of the statistics gives the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

from rl_insight.integrations.hooks import report_once
from rl_insight.integrations.starting import ensure_started
from rl_insight.monitor import default_monitor as monitor

_HISTOGRAMS = (
    ("e2e_latency", "vllm:e2e_request_latency_seconds"),
    ("queued_time", "vllm:request_queue_time_seconds"),
    ("prefill_time", "vllm:request_prefill_time_seconds"),
    ("decode_time", "vllm:request_decode_time_seconds"),
    ("inference_time", "vllm:request_inference_time_seconds"),
    ("mean_time_per_output_token", "vllm:request_time_per_output_token_seconds"),
    ("num_prompt_tokens", "vllm:request_prompt_tokens"),
    ("num_generation_tokens", "vllm:request_generation_tokens"),
)
"""Fields of a finished request, and the histograms they go to."""
_SPECULATION = (
    ("num_drafts", "vllm:spec_decode_num_drafts"),
    ("num_draft_tokens", "vllm:spec_decode_num_draft_tokens"),
    ("num_accepted_tokens", "vllm:spec_decode_num_accepted_tokens"),
)
_ESTIMATES = (
    ("num_flops_per_gpu", "vllm:estimated_flops_per_gpu_total"),
    ("num_read_bytes_per_gpu", "vllm:estimated_read_bytes_per_gpu_total"),
    ("num_write_bytes_per_gpu", "vllm:estimated_write_bytes_per_gpu_total"),
)
"""What an iteration computed and moved, where vLLM was started with `--enable-mfu-metrics`."""
_SOURCES = (
    ("computed", "local_compute"),
    ("local_cache_hit", "local_cache_hit"),
    ("external_kv_transfer", "external_kv_transfer"),
)
"""Where prompt tokens came from: vLLM's field, and its value of the label `source`."""
_EVICTIONS = (
    ("lifetime_seconds", "vllm:kv_block_lifetime_seconds"),
    ("idle_seconds", "vllm:kv_block_idle_before_evict_seconds"),
)
_SLEEP_STATES = {(1, 1): "weights_offloaded", (1, 2): "discard_all"}


class InsightStatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM may not be installed where types are checked
    """Records one engine; none of its methods raises."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._labels: dict[str, Any] = {"engine": str(engine_index)}
        self._has_failed = False
        self._cache = getattr(vllm_config, "cache_config", None)
        try:
            model = getattr(getattr(vllm_config, "model_config", None), "served_model_name", None)
            if isinstance(model, str):
                self._labels["model_name"] = model
            ensure_started("vllm", str(model or "engine"), role="engine")
        except Exception as error:  # noqa: BLE001  # the engine must start as if we were not here
            self._fail(error)

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,  # noqa: ARG002
        engine_idx: int = 0,  # noqa: ARG002
        **_later: Any,
    ) -> None:
        """Record what one iteration of the engine did."""
        if self._has_failed:
            return
        try:
            if scheduler_stats is not None:
                self._record_scheduler(scheduler_stats)
            if iteration_stats is not None:
                self._record_iteration(iteration_stats)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def log_engine_initialized(self) -> None:
        """Mark that the engine is ready, with the size of its KV cache, and awake."""
        if self._has_failed:
            return
        self.record_sleep_state(0, 0)
        try:
            sizes = {name: getattr(self._cache, name, None) for name in ("num_gpu_blocks", "block_size", "cache_dtype")}
            known = {name: value for name, value in sizes.items() if value is not None}
            monitor.trace_event("engine_initialized", **self._labels, **known)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def log(self) -> None:
        """Do nothing: what was recorded is delivered in the background."""

    def record_sleep_state(self, is_awake: int = 0, level: int = 0) -> None:
        """Record whether the engine sleeps; vLLM passes 1 when it does, whatever the argument is called."""
        try:
            state = _SLEEP_STATES.get((is_awake, level), "awake" if not is_awake else "")
            for name in ("awake", *_SLEEP_STATES.values()):
                monitor.metric_gauge("vllm:engine_sleep_state", int(name == state), sleep_state=name, **self._labels)
        except Exception as error:  # noqa: BLE001
            self._fail(error)

    def _record_scheduler(self, stats: Any) -> None:
        labels = self._labels
        by_reason = {"capacity": stats.num_waiting_reqs, "deferred": getattr(stats, "num_skipped_waiting_reqs", 0)}
        monitor.metric_gauge("vllm:num_requests_running", stats.num_running_reqs, **labels)
        monitor.metric_gauge("vllm:num_requests_waiting", sum(by_reason.values()), **labels)
        for reason, requests in by_reason.items():
            monitor.metric_gauge("vllm:num_requests_waiting_by_reason", requests, reason=reason, **labels)
        monitor.metric_gauge("vllm:kv_cache_usage_perc", stats.kv_cache_usage, **labels)
        cache = getattr(stats, "prefix_cache_stats", None)
        if cache is not None:
            self._count((("vllm:prefix_cache_queries", cache.queries), ("vllm:prefix_cache_hits", cache.hits)))
        self._count_fields(getattr(stats, "spec_decoding_stats", None), _SPECULATION)
        self._count_fields(getattr(stats, "perf_stats", None), _ESTIMATES)
        for eviction in getattr(stats, "kv_cache_eviction_events", None) or ():
            self._observe_fields(eviction, _EVICTIONS)
            self._observe("vllm:kv_block_reuse_gap_seconds", getattr(eviction, "reuse_gaps_seconds", ()))

    def _record_iteration(self, stats: Any) -> None:
        self._count(
            (
                ("vllm:prompt_tokens", stats.num_prompt_tokens),
                ("vllm:generation_tokens", stats.num_generation_tokens),
                ("vllm:num_preemptions", stats.num_preempted_reqs),
                ("vllm:corrupted_requests", getattr(stats, "num_corrupted_reqs", 0)),
            )
        )
        prompts = getattr(stats, "prompt_token_stats", None)
        if prompts is not None:
            self._record_prompts(prompts, stats.num_generation_tokens)
        self._observe("vllm:time_to_first_token_seconds", getattr(stats, "time_to_first_tokens_iter", ()))
        self._observe("vllm:inter_token_latency_seconds", getattr(stats, "inter_token_latencies_iter", ()))
        for request in stats.finished_requests:
            self._count((("vllm:request_success", 1),), {"finished_reason": str(request.finish_reason)})
            self._observe_fields(request, _HISTOGRAMS)
            cached = getattr(request, "num_cached_tokens", None)
            if cached is not None:
                computed = request.num_prompt_tokens - max(cached, 0)
                self._observe("vllm:request_prefill_kv_computed_tokens", (computed,))

    def _record_prompts(self, prompts: Any, generated: int) -> None:
        """Record where the prompt tokens of an iteration came from, and how many tokens it computed."""
        for field, source in _SOURCES:
            self._count((("vllm:prompt_tokens_by_source", getattr(prompts, field, 0)),), {"source": source})
        self._count((("vllm:prompt_tokens_cached", getattr(prompts, "cached_tokens", 0)),))
        self._observe("vllm:iteration_tokens_total", (getattr(prompts, "computed", 0) + generated,))

    def _count_fields(self, stats: Any, names: Iterable[tuple[str, str]]) -> None:
        self._count((name, getattr(stats, field, 0)) for field, name in names)

    def _count(self, amounts: Iterable[tuple[str, float]], more: Mapping[str, str] | None = None) -> None:
        for name, amount in amounts:
            if amount:
                monitor.metric_count(name, amount, **self._labels, **(more or {}))

    def _observe_fields(self, stats: Any, names: Iterable[tuple[str, str]]) -> None:
        for field, name in names:
            value = getattr(stats, field, None)
            if value is not None:
                self._observe(name, (value,))

    def _observe(self, name: str, values: Iterable[float]) -> None:
        for value in values:
            monitor.metric_histogram(name, value, **self._labels)

    def _fail(self, error: Exception) -> None:
        """Say once what does not work, and record no more of this engine."""
        self._has_failed = True
        report_once("the metrics of vLLM", error)
