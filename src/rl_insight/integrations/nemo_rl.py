"""NeMo-RL: one line before its trainer starts.

>>> import rl_insight.integrations.nemo_rl as insight_nemo
>>> insight_nemo.instrument()

Every `Logger` also logs to the run. Everything that a `Timer` measures becomes a state that is visible while it is
open, including the bubbles that NeMo-RL calls `idle/...`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import after, around, never_raises, on_import
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.timers import record_starts
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor


@never_raises("the NeMo-RL logger")
class InsightNemoLogger:
    """Implements NeMo-RL's `LoggerInterface`; its methods never raise."""

    def __init__(self) -> None:
        self._logger = InsightLogger()

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int, prefix: str | None = "", *_args: Any, **_kwargs: Any
    ) -> None:
        """Record the values of a step, with a prefix for their names."""
        self._logger.log({f"{prefix}/{key}" if prefix else key: metrics[key] for key in metrics}, int(step))
        if prefix in {"", "train", None}:  # NeMo-RL logs a step when it ends
            monitor.set_step(int(step) + 1)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record the configuration of the run."""
        monitor.record_config(params)

    def log_histogram(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: NeMo-RL's histograms are images for a tracker."""

    def log_plot(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: plots stay with the tracker."""


def instrument() -> None:
    """Record what NeMo-RL does if a server is configured or running. Idempotent."""
    if is_wanted():
        on_import("nemo_rl.utils.logger", _patch_logger)
        on_import("nemo_rl.utils.timer", _patch_timer)


def _patch_logger(module: ModuleType) -> None:
    after(module.Logger, "__init__", lambda call, _none: _add_logger(call["self"]))
    around(module.Logger, "log_metrics", paused)


def _add_logger(logger: Any) -> None:
    ensure_started("nemo-rl", "training", role="trainer")
    logger.loggers.append(InsightNemoLogger())


def _patch_timer(module: ModuleType) -> None:
    record_starts(module, stop="stop", label="label")
