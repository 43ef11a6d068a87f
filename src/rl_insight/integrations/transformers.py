"""Hugging Face transformers: `report_to="rl_insight"`, or `trainer.add_callback(InsightCallback())`.

>>> import rl_insight.integrations.transformers  # doctest: +SKIP
>>> TrainingArguments(report_to="rl_insight")  # doctest: +SKIP

Metrics come with their steps; steps, backward, optimizer, evaluation and checkpoints become states. Step n is what the
trainer calls `global_step` once it is done, for metrics and states alike.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from transformers.trainer_callback import TrainerCallback

from rl_insight.integrations.hooks import OpenBlock, around, before, never_raises, on_import, quiet
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor

NAME = "rl_insight"
"""For `report_to`."""


@never_raises("the callback of transformers")
class InsightCallback(TrainerCallback):  # type: ignore[misc]  # transformers ships no types
    """Records a `Trainer`: metrics, steps, and what each step's time was spent on.

    Args:
        project: The project of the run; needed only where nothing has started recording.
    """

    def __init__(self, project: str = "transformers") -> None:
        self._project = project
        self._logger = InsightLogger()
        self._step, self._optimizer = OpenBlock(), OpenBlock()
        instrument()

    def on_train_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Start recording, as the experiment `run_name` or the output folder."""
        name = getattr(args, "run_name", None) or Path(args.output_dir or "training").name or "training"
        ensure_started(self._project, name, role="trainer", rank=getattr(args, "process_index", None))
        if state.is_world_process_zero:
            monitor.record_config(args)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Begin a step."""
        self._close()
        monitor.set_step(state.global_step + 1)
        self._step.enter(monitor.trace_span("train_step"))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Begin the optimizer's part of a step."""
        self._optimizer.enter(monitor.trace_state("optimizer_step"))

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """End the optimizer's part of a step."""
        self._optimizer.leave()

    def on_step_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """End a step."""
        self._close()

    def on_log(
        self,
        args: Any,  # noqa: ARG002
        state: Any,
        control: Any,  # noqa: ARG002
        logs: Mapping[str, Any] | None = None,
        **_kwargs: Any,
    ) -> None:
        """Record what the trainer logs, once for all ranks."""
        if logs and state.is_world_process_zero:
            self._logger.log(logs, state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Mark a checkpoint."""
        if state.is_world_process_zero:
            monitor.trace_event("checkpoint_saved", step=state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **_kwargs: Any) -> None:  # noqa: ARG002
        """Deliver what was recorded; the run continues until the process ends or calls `finish()`."""
        self._close()
        monitor.flush()

    def _close(self) -> None:
        self._optimizer.leave()
        self._step.leave()


def register(module: ModuleType) -> None:
    """Add our callback to those that `report_to` knows."""
    module.INTEGRATION_TO_CALLBACK.setdefault(NAME, InsightCallback)


def instrument() -> None:
    """Turn the parts of a step that have no callback into states: backward, evaluation, checkpoints."""
    on_import("accelerate.accelerator", _patch_accelerator)
    on_import("transformers.trainer", _patch_trainer)
    on_import("transformers.integrations.integration_utils", _patch_reporting)
    with contextlib.suppress(ImportError):
        from rl_insight.integrations.trl import instrument as instrument_trl

        instrument_trl()


def _patch_accelerator(module: ModuleType) -> None:
    around(module.Accelerator, "backward", lambda _call: monitor.trace_state("backward"))


def _patch_trainer(module: ModuleType) -> None:
    around(module.Trainer, "evaluate", lambda _call: monitor.trace_state("evaluate"))
    around(module.Trainer, "_save_checkpoint", lambda _call: monitor.trace_state("save_checkpoint"))


def _patch_reporting(module: ModuleType) -> None:
    """Keep what our callback records from coming back through the mirrors of the trackers of other callbacks."""
    for callback in module.INTEGRATION_TO_CALLBACK.values():
        if "on_log" in vars(callback) and not issubclass(callback, InsightCallback):
            around(callback, "on_log", paused)


def record_every_trainer(module: ModuleType) -> None:
    """Add our callback to every `Trainer` that trains without it, whatever its `report_to` says.

    Args:
        module: `transformers.trainer`.
    """

    def add(call: Mapping[str, Any]) -> None:
        trainer: Any = call["self"]
        if not any(isinstance(one, InsightCallback) for one in trainer.callback_handler.callbacks):
            trainer.add_callback(InsightCallback())

    before(module.Trainer, "train", add)


quiet('report_to="rl_insight"')(on_import)("transformers.integrations.integration_utils", register)
