"""The stat logger that vLLM loads through `vllm.stat_logger_plugins`: what each engine iteration says about itself.

Metrics have the names and the label `engine` of vLLM's Prometheus endpoint, so dashboards and diagnosis rules read them
alike. A release of vLLM without one of the statistics gives the others.
"""

from __future__ import annotations

from collections.abc import Iterable
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
_SLEEP_STATES = {(1, 1): "weights_offloaded", (1, 2): "discard_all"}


class InsightStatLogger(StatLoggerBase):  # type: ignore[misc]  # vLLM may not be installed where types are checked
    """Records one engine; none of its methods raises."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self._labels: dict[str, Any] = {"engine": str(engine_index)}
        self._has_failed = False
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
        """Mark that the engine is ready, and awake."""
        if not self._has_failed:
            self.record_sleep_state(0, 0)
            monitor.trace_event("engine_initialized", **self._labels)

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
        waiting = stats.num_waiting_reqs + getattr(stats, "num_skipped_waiting_reqs", 0)
        monitor.metric_gauge("vllm:num_requests_running", stats.num_running_reqs, **labels)
        monitor.metric_gauge("vllm:num_requests_waiting", waiting, **labels)
        monitor.metric_gauge("vllm:kv_cache_usage_perc", stats.kv_cache_usage, **labels)
        cache = getattr(stats, "prefix_cache_stats", None)
        if cache is not None:
            self._count((("vllm:prefix_cache_queries", cache.queries), ("vllm:prefix_cache_hits", cache.hits)))

    def _record_iteration(self, stats: Any) -> None:
        labels = self._labels
        self._count(
            (
                ("vllm:prompt_tokens", stats.num_prompt_tokens),
                ("vllm:generation_tokens", stats.num_generation_tokens),
                ("vllm:num_preemptions", stats.num_preempted_reqs),
            )
        )
        for seconds in getattr(stats, "time_to_first_tokens_iter", ()):
            monitor.metric_histogram("vllm:time_to_first_token_seconds", seconds, **labels)
        for request in stats.finished_requests:
            monitor.metric_count("vllm:request_success", finished_reason=str(request.finish_reason), **labels)
            for field, name in _HISTOGRAMS:
                value = getattr(request, field, None)
                if value is not None:
                    monitor.metric_histogram(name, value, **labels)

    def _count(self, amounts: Iterable[tuple[str, float]]) -> None:
        for name, amount in amounts:
            if amount:
                monitor.metric_count(name, amount, **self._labels)

    def _fail(self, error: Exception) -> None:
        """Say once what does not work, and record no more of this engine."""
        self._has_failed = True
        report_once("the metrics of vLLM", error)
