# ruff: noqa: ARG002, D102  # callbacks have the framework's names and arguments
"""SkyRL: `RayPPOTrainer(..., callbacks=[InsightSkyRLCallback()])`.

Metrics are recorded with their steps. SkyRL's timers (`generate`, `sync_weights`, `train_critic_and_policy`, ...)
become states that are visible while they run.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from skyrl.train.utils.callbacks import TrainingCallback

from rl_insight.integrations.hooks import OpenBlock, around, never_raises, on_import
from rl_insight.integrations.mirrors import paused
from rl_insight.integrations.starting import ensure_started
from rl_insight.integrations.timers import record_blocks
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor


@never_raises("the SkyRL callback")
class InsightSkyRLCallback(TrainingCallback):  # type: ignore[misc]  # SkyRL may not be installed where types are checked
    """Records a SkyRL trainer: metrics, steps, evaluation, checkpoints, and where the time of each step goes.

    Args:
        project: The project of the run; SkyRL's own project name by default.
    """

    def __init__(self, project: str | None = None) -> None:
        self._project = project
        self._logger = InsightLogger()
        self._evaluation = OpenBlock()
        on_import("skyrl.train.utils.utils", record_blocks)
        on_import("skyrl.train.utils.tracking", _patch_tracking)

    def on_train_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Start recording, with SkyRL's project and run name."""
        settings = getattr(getattr(trainer, "cfg", None), "trainer", None)
        project = self._project or getattr(settings, "project_name", None) or "skyrl"
        ensure_started(str(project), str(getattr(settings, "run_name", None) or "training"), role="trainer")
        if getattr(trainer, "cfg", None) is not None:
            monitor.record_config(trainer.cfg)

    def on_step_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        monitor.set_step(callback_input.global_step)

    def on_eval_start(self, trainer: Any, callback_input: Any, control: Any) -> None:
        self._evaluation.enter(monitor.trace_state("evaluate"))

    def on_eval_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        self._evaluation.leave()

    def on_save(self, trainer: Any, callback_input: Any, control: Any) -> None:
        monitor.trace_event("checkpoint_saved", step=callback_input.global_step, path=callback_input.ckpt_path)

    def on_log(self, trainer: Any, callback_input: Any, control: Any) -> None:
        """Record what SkyRL sends to its tracker."""
        if callback_input.logs:
            self._logger.log(callback_input.logs, callback_input.global_step)

    def on_train_end(self, trainer: Any, callback_input: Any, control: Any) -> None:
        self._evaluation.leave()
        monitor.flush()


def _patch_tracking(module: ModuleType) -> None:
    around(module.Tracking, "log", paused)
