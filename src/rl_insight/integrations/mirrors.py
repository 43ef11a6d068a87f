"""Record what a program logs to W&B, TensorBoard, MLflow or trackio, with its steps.

>>> from rl_insight.integrations.mirrors import mirror_trackers
>>> mirror_trackers()  # before or after `import wandb`; `rl-insight run` does it automatically

The libraries keep working as before, even offline. Numbers and W&B alerts are mirrored; images, tables and text are
not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import Arguments, before, on_import
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

_logger = InsightLogger()
_is_paused: ContextVar[bool] = ContextVar("rl_insight_mirrors_are_paused", default=False)
_LEVELS = {"INFO": "info", "WARN": "warning", "ERROR": "critical"}
"""W&B alert levels to ours."""


def mirror_trackers() -> None:
    """Mirror every tracker library that this program imports. Idempotent."""
    on_import("wandb.sdk.wandb_run", _patch_wandb)
    on_import("torch.utils.tensorboard.writer", _patch_tensorboard)
    on_import("tensorboardX.writer", _patch_tensorboard)
    on_import("mlflow.tracking.client", _patch_mlflow)
    on_import("trackio.run", _patch_trackio)


@contextmanager
def paused(_call: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Mirror nothing inside this block, where a framework sends values to its trackers that are already recorded."""
    before = _is_paused.set(True)
    try:
        yield
    finally:
        _is_paused.reset(before)


@contextmanager
def logged(data: Mapping[str, Any], step: int, *, ends_step: bool = True) -> Iterator[None]:
    """Record values that a framework logs, and mirror nothing while it sends them to its trackers.

    Frameworks log a step when it ends, so that later events belong to the next step.
    """
    _logger.log(data, step)
    if ends_step:
        monitor.set_step(step + 1)
    with paused():
        yield


def _record(data: Mapping[str, Any], step: Any) -> None:
    # Values that our own trackers write came from the run and must not be recorded again.
    if not _is_paused.get() and not threading.current_thread().name.startswith("rl-insight"):
        _logger.log(data, None if step is None else int(step))


def _patch_wandb(module: ModuleType) -> None:
    def log(call: Arguments) -> None:
        # Without a step, W&B adds the values to its current row.
        step = call["step"] if call["step"] is not None else call["self"].step
        _record(call["data"], step)

    def alert(call: Arguments) -> None:
        level = str(getattr(call["level"], "value", call["level"]) or "INFO").upper()
        monitor.alert(str(call["title"]), str(call["text"]), _LEVELS.get(level, "warning"))

    before(module.Run, "log", log)
    if hasattr(module.Run, "alert"):
        before(module.Run, "alert", alert)


def _patch_tensorboard(module: ModuleType) -> None:
    writer = module.SummaryWriter
    before(writer, "add_scalar", lambda call: _record({call["tag"]: call["scalar_value"]}, call["global_step"]))
    before(
        writer, "add_scalars", lambda call: _record({call["main_tag"]: call["tag_scalar_dict"]}, call["global_step"])
    )


def _patch_mlflow(module: ModuleType) -> None:
    def log_batch(call: Arguments) -> None:
        for metric in call["metrics"]:
            _record({metric.key: metric.value}, metric.step)

    before(module.MlflowClient, "log_metric", lambda call: _record({call["key"]: call["value"]}, call["step"]))
    before(module.MlflowClient, "log_batch", log_batch)


def _patch_trackio(module: ModuleType) -> None:
    before(module.Run, "log", lambda call: _record(call["metrics"], call["step"]))
