"""`install()`: AReaL's own imports of `perf_tracer` get RL-Insight's, and its metrics are recorded too."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, on_import, report_once
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

_TRACER = "areal.utils.perf_tracer"
_logger = InsightLogger()


def install() -> None:
    """Record what AReaL traces and logs; call it before AReaL is imported.

    Does nothing where no server is configured or running. Never raises.
    """
    if not is_wanted():
        return
    if _TRACER in sys.modules and sys.modules[_TRACER].__name__ == _TRACER:
        report_once("AReaL's tracer", RuntimeError("it has been imported already. Call install() before"))
    else:
        sys.modules[_TRACER] = sys.modules["rl_insight.compat.areal"]
        on_import("areal.utils", _name_tracer)
    on_import("areal.utils.stats_logger", _patch_stats_logger)


def _name_tracer(module: Any) -> None:
    """Have `from areal.utils import perf_tracer` find it, too: Python sets this name only when it loads a file."""
    module.perf_tracer = sys.modules[_TRACER]


def _record_config(stats_logger: Any) -> None:
    """Record the configuration of the experiment, once for each logger."""
    config = getattr(stats_logger, "exp_config", None)
    if config is not None and not hasattr(stats_logger, "_rl_insight_config"):
        stats_logger._rl_insight_config = True
        monitor.record_config(config)


def _patch_stats_logger(module: ModuleType) -> None:
    @contextmanager
    def committed(call: Mapping[str, Any]) -> Iterator[None]:
        ensure_started("areal", "training", role="trainer")
        _record_config(call["self"])
        step = int(call["global_step"])
        data = call["data"]
        for values in data if isinstance(data, list) else [data]:
            _logger.log(values, step)
        monitor.set_step(step + 1)  # AReaL logs a step when it is over
        with paused():
            yield

    around(module.StatsLogger, "commit", committed)
