"""`install()`: replace AReaL's own `perf_tracer` with RL-Insight's, and record its metrics."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import Arguments, around, on_import, report_once
from rl_insight.integrations.mirrors import logged
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.monitor import default_monitor as monitor

_TRACER = "areal.utils.perf_tracer"


def install() -> None:
    """Record what AReaL traces and logs; call it before importing AReaL.

    Does nothing unless a server is configured or running. Never raises.
    """
    if not is_wanted():
        return
    if _TRACER in sys.modules and sys.modules[_TRACER].__name__ == _TRACER:
        report_once("AReaL's tracer", RuntimeError("it is already imported. Call install() first"))
    else:
        sys.modules[_TRACER] = sys.modules["rl_insight.compat.areal"]
        on_import("areal.utils", _name_tracer)
    on_import("areal.utils.stats_logger", _patch_stats_logger)


def _name_tracer(module: Any) -> None:
    """Make `from areal.utils import perf_tracer` work: Python sets this name only when it loads a file."""
    module.perf_tracer = sys.modules[_TRACER]


def _record_config(stats_logger: Any) -> None:
    """Record the experiment's configuration, once per logger."""
    config = getattr(stats_logger, "exp_config", None)
    if config is not None and not hasattr(stats_logger, "_rl_insight_config"):
        stats_logger._rl_insight_config = True
        monitor.record_config(config)


def _patch_stats_logger(module: ModuleType) -> None:
    around(module.StatsLogger, "commit", _committed)


def _committed(call: Arguments) -> AbstractContextManager[None]:
    ensure_started("areal", "training", role="trainer")
    _record_config(call["self"])
    data = call["data"] if isinstance(call["data"], list) else [call["data"]]
    return logged({key: value for values in data for key, value in values.items()}, int(call["global_step"]))
