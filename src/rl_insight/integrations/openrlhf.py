"""OpenRLHF: one line before its trainer starts.

>>> import rl_insight.integrations.openrlhf as insight_openrlhf
>>> insight_openrlhf.instrument()

Everything that OpenRLHF sends to its W&B or TensorBoard logger becomes metrics of the run, with their steps. That
includes the durations of its phases, which it logs at the end of a step (`timing/generation`, `timing/ppo_train`, ...).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import Arguments, around, before, on_import
from rl_insight.integrations.mirrors import logged
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.monitor import default_monitor as monitor


def instrument() -> None:
    """Record what OpenRLHF logs if a server is configured or running. Idempotent."""
    if is_wanted():
        on_import("openrlhf.utils.logging_utils", _patch_loggers)


def _patch_loggers(module: ModuleType) -> None:
    for owner in (module.WandbLogger, module.TensorboardLogger):
        before(owner, "__init__", lambda call: _record_config(module, call["args"]))
        around(owner, "log_train", lambda call: _logged("train/", call))
        around(owner, "log_eval", lambda call: _logged("eval/", call))


def _record_config(module: ModuleType, args: Any) -> None:
    """Record the training arguments, which every logger is created with."""
    if args:
        ensure_started("openrlhf", "training", role="trainer")
        monitor.record_config(getattr(module, "to_dict", vars)(args))


def _logged(prefix: str, call: Arguments) -> AbstractContextManager[None]:
    ensure_started("openrlhf", "training", role="trainer")
    values = {f"{prefix}{key}": value for key, value in call["logs_dict"].items()}
    return logged(values, int(call["global_step"]), ends_step=prefix == "train/")
