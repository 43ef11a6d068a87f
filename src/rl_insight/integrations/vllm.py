"""vLLM: engine metrics without scraping, and when an engine sleeps, through vLLM's own plug-in entry points.

vLLM loads this module as the general plug-in `rl_insight`, in all of its processes. Where no server is known it does
nothing. With one, `rl_insight.integrations.vllm_stats` is added to the stat loggers of every engine, under the names
that vLLM's Prometheus endpoint has, and the time between `sleep` and `wake_up` is a state of the engine's lane.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, between, on_import, quiet, replace_once
from rl_insight.integrations.starting import is_wanted
from rl_insight.monitor import default_monitor as monitor

LANE = "engine"
_STATS = "rl_insight.integrations.vllm_stats"


@quiet("the vLLM plug-in")
def plugin() -> None:
    """Prepare vLLM's engines; vLLM calls it once or more in each of its processes. Never raises."""
    on_import("vllm.v1.engine.async_llm", _patch_factories)
    if is_wanted():
        on_import("vllm.v1.engine.async_llm", _patch_async_engine)
        on_import("vllm.v1.engine.llm_engine", _patch_engine)
        on_import("vllm.v1.metrics.loggers", _patch_manager)


def _patch_factories(module: Any) -> None:
    """Leave our stat logger out where no server is known: having one makes vLLM collect statistics."""

    def without_ours(load: Callable[..., Any]) -> Callable[..., Any]:
        def load_stat_logger_plugin_factories(*args: Any, **kwargs: Any) -> Any:
            return [one for one in load(*args, **kwargs) if not _is_unwanted(one)]

        return load_stat_logger_plugin_factories

    replace_once(module, "load_stat_logger_plugin_factories", without_ours)


@quiet("the vLLM plug-in", otherwise=False)
def _is_unwanted(factory: Any) -> bool:
    return getattr(factory, "__module__", "") == _STATS and not is_wanted()


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
