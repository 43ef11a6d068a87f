"""NeMo-RL: one line before its trainer starts.

>>> import rl_insight.integrations.nemo_rl as insight_nemo
>>> insight_nemo.instrument()

Every `Logger` also logs to the run, and what a `Timer` measures becomes a state that is open while it runs, also the
bubbles that NeMo-RL calls `idle/...`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, never_raises, on_import
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.timers import record_starts
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor


@never_raises("the NeMo-RL logger")
class InsightNemoLogger:
    """Has the methods of NeMo-RL's `LoggerInterface`; none of them raises."""

    def __init__(self) -> None:
        self._logger = InsightLogger()

    def log_metrics(
        self, metrics: Mapping[str, Any], step: int, prefix: str | None = "", *_args: Any, **_kwargs: Any
    ) -> None:
        """Record values of one step; a prefix comes in front of their names."""
        self._logger.log({f"{prefix}/{key}" if prefix else key: metrics[key] for key in metrics}, int(step))
        if prefix in {"", "train", None}:  # NeMo-RL logs a step when it is over
            monitor.set_step(int(step) + 1)

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        """Record the configuration of the run."""
        monitor.record_config(params)

    def log_histogram(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: NeMo-RL's histograms are pictures of a tracker."""

    def log_plot(self, *_args: Any, **_kwargs: Any) -> None:
        """Do nothing: plots stay with the tracker."""


def instrument() -> None:
    """Record what NeMo-RL does, where a server is configured or running; calling it again changes nothing."""
    if is_wanted():
        on_import("nemo_rl.utils.logger", _patch_logger)
        on_import("nemo_rl.utils.timer", _patch_timer)


def _patch_logger(module: ModuleType) -> None:
    @contextmanager
    def constructed(call: Mapping[str, Any]) -> Iterator[None]:
        yield
        ensure_started("nemo-rl", "training", role="trainer")
        call["self"].loggers.append(InsightNemoLogger())

    around(module.Logger, "__init__", constructed)
    around(module.Logger, "log_metrics", paused)


def _patch_timer(module: ModuleType) -> None:
    record_starts(module.Timer, stop="stop", label="label")
