# ruff: noqa: ARG002, D102  # callbacks have the framework's names and arguments
"""Hugging Face transformers: `report_to="rl_insight"`, or `trainer.add_callback(InsightCallback())`.

>>> import rl_insight.integrations.transformers  # doctest: +SKIP
>>> TrainingArguments(report_to="rl_insight")  # doctest: +SKIP

Metrics are recorded with their steps; steps, backward, optimizer, evaluation and checkpoints become states. Step n is
the trainer's `global_step` after the step, for metrics and states alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers.trainer_callback import TrainerCallback

from rl_insight.integrations import trl
from rl_insight.integrations.hooks import OpenBlock, around, before, never_raises, on_import, quiet
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

NAME = "rl_insight"
"""The value for `report_to`."""


@never_raises("the callback of transformers")
class InsightCallback(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Records a `Trainer`: metrics, steps, and where the time of each step goes.

    Args:
        project: The project of the run; used only if recording has not started.
    """

    def __init__(self, project: str = "transformers") -> None:
        self._project = project
        self._logger = InsightLogger()
        self._step, self._optimizer = OpenBlock(), OpenBlock()
        instrument()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """Start recording, with `run_name` or the output folder as the experiment."""
        name = getattr(args, "run_name", None) or Path(args.output_dir or "training").name or "training"
        ensure_started(self._project, name, role="trainer", rank=getattr(args, "process_index", None))
        if state.is_world_process_zero:
            monitor.record_config(args)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self._close()
        monitor.set_step(state.global_step + 1)
        self._step.enter(monitor.trace_span("train_step"))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self._optimizer.enter(monitor.trace_state("optimizer_step"))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self._optimizer.leave()

    def on_step_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        self._close()

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: Mapping[str, Any] | None = None,
        **_kwargs: Any,
    ) -> None:
        """Record what the trainer logs, on rank 0 only."""
        if logs and state.is_world_process_zero:
            self._logger.log(logs, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        if state.is_world_process_zero:
            monitor.trace_event("checkpoint_saved", step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:
        """Flush; the run continues until the process exits or calls `finish()`."""
        self._close()
        monitor.flush()

    def _close(self) -> None:
        self._optimizer.leave()
        self._step.leave()


def register(module: ModuleType) -> None:
    """Add our callback to the choices of `report_to`."""
    module.INTEGRATION_TO_CALLBACK.setdefault(NAME, InsightCallback)


def instrument() -> None:
    """Record the parts of a step that have no callback as states: backward, evaluation, checkpoints."""
    on_import("accelerate.accelerator", _patch_accelerator)
    on_import("transformers.trainer", _patch_trainer)
    on_import("transformers.integrations.integration_utils", _patch_reporting)
    trl.instrument()


def _patch_accelerator(module: ModuleType) -> None:
    around(module.Accelerator, "backward", lambda _call: monitor.trace_state("backward"))


def _patch_trainer(module: ModuleType) -> None:
    around(module.Trainer, "evaluate", lambda _call: monitor.trace_state("evaluate"))
    around(module.Trainer, "_save_checkpoint", lambda _call: monitor.trace_state("save_checkpoint"))


def _patch_reporting(module: ModuleType) -> None:
    """Prevent values that our callback records from being mirrored again from the trackers of other callbacks."""
    for callback in module.INTEGRATION_TO_CALLBACK.values():
        if "on_log" in vars(callback) and not issubclass(callback, InsightCallback):
            around(callback, "on_log", paused)


def record_every_trainer(module: ModuleType) -> None:
    """Add our callback to every `Trainer` that trains without it, regardless of `report_to`.

    Args:
        module: `transformers.trainer`.
    """

    def add(call: Mapping[str, Any]) -> None:
        trainer: Any = call["self"]
        if not any(isinstance(one, InsightCallback) for one in trainer.callback_handler.callbacks):
            trainer.add_callback(InsightCallback())

    before(module.Trainer, "train", add)


quiet('report_to="rl_insight"')(on_import)("transformers.integrations.integration_utils", register)
