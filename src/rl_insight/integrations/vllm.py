"""vLLM: engine metrics without scraping, and the sleep of engines, through vLLM's plugin entry points.

vLLM loads this module as the general plugin `rl_insight`, in all of its processes. Without a known server it does
nothing. With one, it adds `rl_insight.integrations.vllm_stats` to the stat loggers of every engine, with the metric
names of vLLM's Prometheus endpoint, and records the time between `sleep` and `wake_up` as a state on the engine's lane.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import Arguments, after, between, on_import, quiet
from rl_insight.integrations.starting import is_wanted
from rl_insight.monitor import default_monitor as monitor

LANE = "engine"
_ENGINES = {"vllm.v1.engine.async_llm": "AsyncLLM", "vllm.v1.engine.llm_engine": "LLMEngine"}
_STATS = "rl_insight.integrations.vllm_stats"


@quiet("the vLLM plug-in")
def plugin() -> None:
    """Patch vLLM's engines; vLLM calls it once or more in each of its processes. Never raises."""
    on_import("vllm.v1.engine.async_llm", _patch_factories)
    if is_wanted():
        for name in _ENGINES:
            on_import(name, _patch_engine)
        on_import("vllm.v1.metrics.loggers", _patch_manager)


def _patch_factories(module: ModuleType) -> None:
    after(module, "load_stat_logger_plugin_factories", _remove_unwanted)


def _remove_unwanted(_call: Arguments, factories: list[Any]) -> None:
    """Remove our stat logger if no server is known: having one makes vLLM collect statistics."""
    if not is_wanted():
        factories[:] = [one for one in factories if getattr(one, "__module__", "") != _STATS]


def _patch_engine(module: ModuleType) -> None:
    between(
        getattr(module, _ENGINES[module.__name__]),
        ("sleep", "wake_up"),
        lambda call: monitor.trace_state("sleep", LANE, level=call.get("level", 1)),
        in_any_thread=True,
    )


def _patch_manager(module: ModuleType) -> None:
    """Add our stat logger to engines that load no plugins, such as the synchronous `LLM`."""

    def add_logger(call: Arguments, _none: None) -> None:
        from rl_insight.integrations.vllm_stats import InsightStatLogger

        manager: Any = call["self"]
        if InsightStatLogger not in (call.get("custom_stat_loggers") or ()):
            manager.stat_loggers.append(
                module.PerEngineStatLoggerAdapter(
                    vllm_config=call["vllm_config"],
                    engine_indexes=manager.engine_indexes,
                    per_engine_stat_logger_factory=InsightStatLogger,
                )
            )

    after(module.StatLoggerManager, "__init__", add_logger)
