"""vLLM: engine metrics without scraping, and when an engine sleeps, through vLLM's own plug-in entry points.

vLLM loads this module as the general plug-in `rl_insight`, in all of its processes. Where no server is known it does
nothing. With one, `rl_insight.integrations.vllm_stats` is added to the stat loggers of every engine, under the names
that vLLM's Prometheus endpoint has, and the time between `sleep` and `wake_up` is a state of the engine's lane.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, between, on_import, report_once
from rl_insight.integrations.starting import is_wanted
from rl_insight.monitor import default_monitor as monitor

LANE = "engine"
_STATS = "rl_insight.integrations.vllm_stats"


def plugin() -> None:
    """Prepare vLLM's engines; vLLM calls it once or more in each of its processes. Never raises."""
    try:
        on_import("vllm.v1.engine.async_llm", _patch_factories)
        if is_wanted():
            on_import("vllm.v1.engine.async_llm", _patch_async_engine)
            on_import("vllm.v1.engine.llm_engine", _patch_engine)
            on_import("vllm.v1.metrics.loggers", _patch_manager)
    except Exception as error:  # noqa: BLE001  # vLLM does not guard the call
        report_once("the vLLM plug-in", error)


def _patch_factories(module: Any) -> None:
    """Leave our stat logger out where no server is known: having one makes vLLM collect statistics."""
    load = module.load_stat_logger_plugin_factories
    if hasattr(load, "_rl_insight"):
        return

    @functools.wraps(load)
    def load_stat_logger_plugin_factories(*args: Any, **kwargs: Any) -> Any:
        found = load(*args, **kwargs)
        try:
            return found if is_wanted() else [one for one in found if getattr(one, "__module__", "") != _STATS]
        except Exception as error:  # noqa: BLE001
            report_once("the vLLM plug-in", error)
            return found

    load_stat_logger_plugin_factories._rl_insight = True  # type: ignore[attr-defined]
    module.load_stat_logger_plugin_factories = load_stat_logger_plugin_factories


def _patch_async_engine(module: ModuleType) -> None:
    _record_sleep(module.AsyncLLM)


def _patch_engine(module: ModuleType) -> None:
    _record_sleep(module.LLMEngine)


def _record_sleep(engine: Any) -> None:
    between(
        engine,
        ("sleep", "wake_up"),
        lambda call: monitor.trace_state("sleep", LANE, level=call.get("level", 1)),
        in_any_thread=True,
    )


def _patch_manager(module: ModuleType) -> None:
    """Add our stat logger to engines that load no plug-ins, as the synchronous `LLM` does."""

    @contextmanager
    def constructed(call: Mapping[str, Any]) -> Iterator[None]:
        yield
        from rl_insight.integrations.vllm_stats import InsightStatLogger

        given = call.get("custom_stat_loggers") or ()
        if InsightStatLogger not in given:
            manager: Any = call["self"]
            manager.stat_loggers.append(
                module.PerEngineStatLoggerAdapter(
                    vllm_config=call["vllm_config"],
                    engine_indexes=manager.engine_indexes,
                    per_engine_stat_logger_factory=InsightStatLogger,
                )
            )

    around(module.StatLoggerManager, "__init__", constructed)
