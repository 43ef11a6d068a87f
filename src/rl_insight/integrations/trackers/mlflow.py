"""MLflow."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Mapping
from typing import Any

from rl_insight.integrations.trackers.base import Tracker

_NOT_ALLOWED = re.compile(r"[^\w\-. /:]")
_BATCH = 1000
"""The most metrics that MLflow takes in one request."""


class MlflowTracker(Tracker):
    """Writes to the active run, to the run that is given, or to a new one. Steps may come in any order.

    MLflow's active run belongs to a thread, so the run is looked up here and addressed by its id.

    Args:
        run_id: The run; the active one, or a new one, when left out.
        tracking_uri: Where MLflow keeps its data; MLflow's own setting when left out.
        experiment_name: For a new run.
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
        """Write values of one step; without one they get step 0, as MLflow does."""
        now = int(time.time() * 1000)
        metrics = [
            self._entities.Metric(_NOT_ALLOWED.sub("_", key), float(value), now, step or 0)
            for key, value in values.items()
        ]
        for start in range(0, len(metrics), _BATCH):
            self._client.log_batch(self._run_id, metrics=metrics[start : start + _BATCH])

    def close(self) -> None:
        """End the run if it was begun here."""
        if self._is_ours:
            self._is_ours = False
            self._client.set_terminated(self._run_id)
