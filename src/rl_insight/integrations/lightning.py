# ruff: noqa: ARG002, D102  # callbacks have the framework's names and arguments
"""Lightning: a `Logger` and a `Callback`.

>>> trainer = Trainer(logger=InsightLightningLogger(), callbacks=[InsightLightningCallback()])  # doctest: +SKIP

If a server is configured or running, Lightning adds the callback without a line of code (`lightning_plugin`). Steps
count from 0, as in Lightning's own loggers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

# Both packages have the same classes; importing the one that the program does not use would take seconds.
if find_spec("lightning") is None or ("pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules):
    from pytorch_lightning.callbacks import Callback
    from pytorch_lightning.loggers import Logger
else:
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import Logger

from rl_insight.integrations.hooks import OpenBlock, never_raises
from rl_insight.integrations.starting import ensure_started
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor


@never_raises("the Lightning logger")
class InsightLightningLogger(Logger):  # type: ignore[misc]  # Lightning may not be installed where types are checked
    """Records what a module logs, with its steps.

    Args:
        project: The project of the run; used only if recording has not started.
        experiment_name: The experiment.
    """

    def __init__(self, project: str = "lightning", experiment_name: str = "training") -> None:
        super().__init__()
        self._project = project
        self._experiment_name = experiment_name
        self._logger = InsightLogger()

    @property
    def name(self) -> str:
        """Return the experiment's name."""
        return self._experiment_name

    @property
    def version(self) -> str:
        """Return the run's id; empty while recording is off."""
        return str(monitor.get_status().get("run_id", ""))

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        ensure_started(self._project, self._experiment_name, role="trainer")
        self._logger.log(metrics, step)

    def log_hyperparams(self, params: Mapping[str, Any] | argparse.Namespace, *_args: Any, **_kwargs: Any) -> None:
        """Record the hyperparameters as the configuration of the run."""
        ensure_started(self._project, self._experiment_name, role="trainer")
        monitor.record_config(params)

    def finalize(self, status: str) -> None:
        monitor.flush()
        super().finalize(status)


@never_raises("the Lightning callback")
class InsightLightningCallback(Callback):  # type: ignore[misc]
    """Records steps and where their time goes: forward, backward, optimizer, validation, checkpoints."""

    def __init__(self, project: str = "lightning", experiment_name: str = "training") -> None:
        self._project = project
        self._experiment_name = experiment_name
        self._logger = InsightLogger()
        self._step, self._state = OpenBlock(), OpenBlock()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Keep one callback if Lightning added another one automatically."""
        ours = [one for one in trainer.callbacks if isinstance(one, InsightLightningCallback)]
        trainer.callbacks = [one for one in trainer.callbacks if one not in ours[1:]]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        name = self._experiment_name if self._experiment_name != "training" else type(pl_module).__name__
        ensure_started(self._project, name, role="trainer", rank=trainer.global_rank)
        if trainer.is_global_zero and getattr(pl_module, "hparams", None):
            monitor.record_config(dict(pl_module.hparams))

    def on_train_batch_start(self, trainer: Any, *_args: Any) -> None:
        self._leave()
        monitor.set_step(trainer.global_step)
        self._step.enter(monitor.trace_span("train_step"))
        self._state.enter(monitor.trace_state("forward"))

    def on_before_backward(self, *_args: Any) -> None:
        self._state.enter(monitor.trace_state("backward"))

    def on_after_backward(self, *_args: Any) -> None:
        self._state.leave()

    def on_before_optimizer_step(self, *_args: Any) -> None:
        self._state.enter(monitor.trace_state("optimizer_step"))

    def on_train_batch_end(self, trainer: Any, *_args: Any) -> None:
        """End a step, and record its metrics."""
        self._leave()
        if trainer.global_step % max(1, int(trainer.log_every_n_steps or 1)) == 0:
            self._log(trainer)

    def on_validation_start(self, *_args: Any) -> None:
        self._state.enter(monitor.trace_state("validation"))

    def on_validation_end(self, trainer: Any, *_args: Any) -> None:
        """End validation, and record its metrics."""
        self._state.leave()
        if not trainer.sanity_checking:
            self._log(trainer)

    def on_save_checkpoint(self, trainer: Any, *_args: Any) -> None:
        if trainer.is_global_zero:
            monitor.trace_event("checkpoint_saved", step=trainer.global_step)

    def _log(self, trainer: Any) -> None:
        """Record the metrics of the step that has just ended, on rank 0 only, unless our own logger does."""
        if trainer.is_global_zero and not any(isinstance(one, InsightLightningLogger) for one in trainer.loggers):
            self._logger.log(trainer.callback_metrics, trainer.global_step - 1)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End open states with the exception."""
        self._leave(exception)

    def on_fit_end(self, *_args: Any) -> None:
        self._leave()
        monitor.flush()

    def _leave(self, error: BaseException | None = None) -> None:
        self._state.leave(error)
        self._step.leave(error)
