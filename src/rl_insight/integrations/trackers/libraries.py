"""The trackers: MLflow, SwanLab, TensorBoard, trackio, and Weights & Biases."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from rl_insight.errors import ConfigError
from rl_insight.integrations.trackers.base import RunTracker, Tracker

_MLFLOW_ILLEGAL = re.compile(r"[^\w\-. /:]")
_MLFLOW_BATCH = 1000
"""The most metrics that MLflow accepts in one request."""
_TENSORBOARD_WRITERS = ("torch.utils.tensorboard", "tensorboardX")
WANDB_STEP_KEY = "rl_insight/step"
"""The x axis of our charts in Weights & Biases, whose built-in step can only increase."""


class MlflowTracker(Tracker):
    """Writes to the given run, the active one, or a new one. Steps may come in any order.

    MLflow's active run belongs to a thread, so the run is looked up here and addressed by its id.

    Args:
        run_id: The run; by default the active one, or a new one.
        tracking_uri: MLflow's storage; MLflow's own setting by default.
        experiment_name: The experiment of a new run.
    """

    name = "mlflow"

    def __init__(
        self, run_id: str | None = None, *, tracking_uri: str | None = None, experiment_name: str | None = None
    ) -> None:
        mlflow: Any = importlib.import_module("mlflow")
        self._entities: Any = importlib.import_module("mlflow.entities")
        self._client: Any = mlflow.MlflowClient(tracking_uri)
        active = mlflow.active_run() if run_id is None and tracking_uri is None else None
        self._run_id = run_id or (active.info.run_id if active else None)
        self._is_ours = self._run_id is None
        if self._run_id is None:
            self._run_id = self._new_run(experiment_name or "Default")

    def _new_run(self, experiment_name: str) -> Any:
        experiment = self._client.get_experiment_by_name(experiment_name)
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment(experiment_name)
        return self._client.create_run(experiment_id).info.run_id

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write the values of a step; step 0 if there is none, as in MLflow."""
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(_MLFLOW_ILLEGAL.sub("_", key), float(value), now, step or 0)
            for key, value in values.items()
        ]
        for start in range(0, len(metrics), _MLFLOW_BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _MLFLOW_BATCH])

    def close(self) -> None:
        """End the run if it was started here."""
        if self._is_ours:
            self._is_ours = False
            self._client.set_terminated(self._run_id)


class SwanLabTracker(RunTracker):
    """Writes to the given run, the active one, or a new one.

    SwanLab keeps one value per key and step: the first.

    Args:
        run: The run that `swanlab.init` returned.
        options: For `swanlab.init`, if there is no run yet: `project`, `mode`, `logdir`, ...
    """

    name = "swanlab"

    def __init__(self, run: Any = None, **options: Any) -> None:
        swanlab: Any = importlib.import_module("swanlab")
        active = swanlab.get_run() if hasattr(swanlab, "get_run") and not options and run is None else None
        super().__init__(run or active, lambda: swanlab.init(**options))


class TensorBoardTracker(Tracker):
    """Writes event files, through PyTorch's writer or tensorboardX. Steps may come in any order.

    Args:
        log_dir: The folder of the run.
        writer: A `SummaryWriter` to use instead of a new one.
    """

    name = "tensorboard"

    def __init__(self, log_dir: str | None = None, *, writer: Any = None) -> None:
        self._is_ours = writer is None
        self._writer = writer if writer is not None else _tensorboard_writer()(log_dir)
        self._latest = 0

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write the values of a step, or of the latest one if there is none."""
        if step is not None:
            self._latest = step
        for key, value in values.items():
            self._writer.add_scalar(key, value, global_step=self._latest)

    def close(self) -> None:
        """Flush the events; close the writer if it was created here."""
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.flush()
        if self._is_ours:
            writer.close()


def _tensorboard_writer() -> Any:
    for module in _TENSORBOARD_WRITERS:
        try:
            return importlib.import_module(module).SummaryWriter
        except ImportError:
            continue
    raise ImportError(
        "TensorBoard's writer is missing: run `pip install tensorboardX`, or install tensorboard and torch."
    )


class TrackioTracker(RunTracker):
    """Writes to the given run or a new one. Steps may come in any order.

    Args:
        run: The run that `trackio.init` returned.
        options: For `trackio.init`, if no run is given: `project`, `name`, ...
    """

    name = "trackio"

    def __init__(self, run: Any = None, **options: Any) -> None:
        super().__init__(run, lambda: importlib.import_module("trackio").init(**options))


class WandbTracker(RunTracker):
    """Writes to the given run, the active one, or a new one if `init` options are given.

    Every value has `rl_insight/step` as its x axis. In the user's run, W&B's step never advances beyond the values
    written, and values of a past step are added to the current row.

    Args:
        run: A run of `wandb.init`.
        options: For `wandb.init`, if there is no run yet: `project`, `mode`, `dir`, ...
    """

    name = "wandb"

    def __init__(self, run: Any = None, **options: Any) -> None:
        wandb: Any = importlib.import_module("wandb")
        super().__init__(run or (None if options else wandb.run), lambda: wandb.init(**options))
        self._known: set[str] = set()
        self._run.define_metric(WANDB_STEP_KEY, hidden=True)

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write the values of a step."""
        for key in values:
            if key not in self._known:
                self._known.add(key)
                self._run.define_metric(key, step_metric=WANDB_STEP_KEY)
        if step is None:
            self._run.log(dict(values), commit=self._is_ours)
            return
        row = {**values, WANDB_STEP_KEY: step}
        if self._is_ours:
            self._run.log(row)
        elif step > self._run.step:
            self._run.log(row, step=step)
        else:
            self._run.log(row, commit=False)


_TRACKERS: dict[str, Callable[..., Tracker]] = {
    tracker.name: tracker
    for tracker in (MlflowTracker, SwanLabTracker, TensorBoardTracker, TrackioTracker, WandbTracker)
}


def tracker_class(name: str) -> Callable[..., Tracker]:
    """Return the class of a tracker by name.

    Raises:
        ConfigError: an unknown name; lists the known ones.
    """
    if name not in _TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}: choose from {', '.join(sorted(_TRACKERS))}.")
    return _TRACKERS[name]


def create_tracker(name: str, **options: Any) -> Tracker:
    """Return a tracker by name, created with these options.

    Raises:
        ConfigError: an unknown name.
        ImportError: its library is not installed.
    """
    return tracker_class(name)(**options)
