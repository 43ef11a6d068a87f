"""What a program logs to W&B, TensorBoard, MLflow or trackio also becomes metrics of its run, with their steps.

>>> from rl_insight.integrations.mirrors import mirror_trackers
>>> mirror_trackers()  # before or after `import wandb`; `rl-insight run` does it by itself

The libraries keep working as they are, also offline. Numbers are mirrored, and W&B's alerts; images, tables and texts
are not.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import before, on_import
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

_logger = InsightLogger()
_is_paused: ContextVar[bool] = ContextVar("rl_insight_mirrors_are_paused", default=False)
_LEVELS = {"INFO": "info", "WARN": "warning", "ERROR": "critical"}
"""W&B's levels of alerts to ours."""


def mirror_trackers() -> None:
    """Mirror every tracker library that this program imports; calling it again changes nothing."""
    on_import("wandb.sdk.wandb_run", _patch_wandb)
    on_import("torch.utils.tensorboard.writer", _patch_tensorboard)
    on_import("tensorboardX.writer", _patch_tensorboard)
    on_import("mlflow.tracking.client", _patch_mlflow)
    on_import("trackio.run", _patch_trackio)


@contextmanager
def paused(_call: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Mirror nothing inside this block: a framework hands its trackers values that were recorded from itself."""
    before = _is_paused.set(True)
    try:
        yield
    finally:
        _is_paused.reset(before)


def _record(data: Mapping[str, Any], step: Any) -> None:
    # What our own trackers write came from the run: it must not come back as a second copy.
    if not _is_paused.get() and not threading.current_thread().name.startswith("rl-insight"):
        _logger.log(data, None if step is None else int(step))


def _patch_wandb(module: ModuleType) -> None:
    def log(call: Mapping[str, Any]) -> None:
        # Without a step, the values go into the row that is open.
        step = call["step"] if call["step"] is not None else call["self"].step
        _record(call["data"], step)

    def alert(call: Mapping[str, Any]) -> None:
        level = str(getattr(call["level"], "value", call["level"]) or "INFO").upper()
        monitor.alert(str(call["title"]), str(call["text"]), _LEVELS.get(level, "warning"))

    before(module.Run, "log", log)
    if hasattr(module.Run, "alert"):
        before(module.Run, "alert", alert)


def _patch_tensorboard(module: ModuleType) -> None:
    for method, tag, values in (("add_scalar", "tag", "scalar_value"), ("add_scalars", "main_tag", "tag_scalar_dict")):
        before(module.SummaryWriter, method, partial(_record_tagged, tag, values))


def _record_tagged(tag: str, values: str, call: Mapping[str, Any]) -> None:
    _record({call[tag]: call[values]}, call["global_step"])


def _patch_mlflow(module: ModuleType) -> None:
    def log_batch(call: Mapping[str, Any]) -> None:
        for metric in call["metrics"]:
            _record({metric.key: metric.value}, metric.step)

    before(module.MlflowClient, "log_metric", lambda call: _record({call["key"]: call["value"]}, call["step"]))
    before(module.MlflowClient, "log_batch", log_batch)


def _patch_trackio(module: ModuleType) -> None:
    before(module.Run, "log", lambda call: _record(call["metrics"], call["step"]))
