"""OpenRLHF: one line before its trainer starts.

>>> import rl_insight.integrations.openrlhf as insight_openrlhf
>>> insight_openrlhf.instrument()

What OpenRLHF gives its W&B or TensorBoard logger becomes metrics of the run, with their steps; so do the durations of
its phases, which it knows at the end of a step (`timing/generation`, `timing/ppo_train`, ...).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import around, before, on_import
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

_logger = InsightLogger()


def instrument() -> None:
    """Record what OpenRLHF logs, where a server is configured or running; calling it again changes nothing."""
    if is_wanted():
        on_import("openrlhf.utils.logging_utils", _patch_loggers)


def _patch_loggers(module: ModuleType) -> None:
    for owner in (module.WandbLogger, module.TensorboardLogger):
        before(owner, "__init__", lambda call: _record_config(module, call["args"]))
        around(owner, "log_train", lambda call: _recorded("train/", call))
        around(owner, "log_eval", lambda call: _recorded("eval/", call))


def _record_config(module: ModuleType, args: Any) -> None:
    """Record the arguments of the training, which every logger is made with."""
    if args:
        ensure_started("openrlhf", "training", role="trainer")
        monitor.record_config(getattr(module, "to_dict", vars)(args))


@contextmanager
def _recorded(prefix: str, call: Mapping[str, Any]) -> Iterator[None]:
    """Record what a logger was given; its tracker's copy is not mirrored."""
    ensure_started("openrlhf", "training", role="trainer")
    step = int(call["global_step"])
    _logger.log({f"{prefix}{key}": value for key, value in call["logs_dict"].items()}, step)
    if prefix == "train/":  # OpenRLHF logs a step when it is over
        monitor.set_step(step + 1)
    with paused():
        yield
