"""Weights & Biases."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rl_insight.integrations.trackers.base import RunTracker

STEP_KEY = "rl_insight/step"
"""The x axis of our charts: Weights & Biases' own step can only grow."""


class WandbTracker(RunTracker):
    """Writes to the active run, to the run that is given, or to a new one when `init` options are given.

    Every value has `rl_insight/step` as its x axis. In a run of the user's, its own step is never moved ahead of what
    is written, and values of a step that has passed are added to the row that is open.

    Args:
        run: A run of `wandb.init`.
        options: For `wandb.init`, when there is no run yet: `project`, `mode`, `dir`, ...
    """

    name = "wandb"

    def __init__(self, run: Any = None, **options: Any) -> None:
        wandb: Any = importlib.import_module("wandb")
        super().__init__(run or (None if options else wandb.run), lambda: wandb.init(**options))
        self._known: set[str] = set()
        self._run.define_metric(STEP_KEY, hidden=True)

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write values of one step."""
        for key in values:
            if key not in self._known:
                self._known.add(key)
                self._run.define_metric(key, step_metric=STEP_KEY)
        if step is None:
            self._run.log(dict(values), commit=self._is_ours)
            return
        row = {**values, STEP_KEY: step}
        if self._is_ours:
            self._run.log(row)
        elif step > self._run.step:
            self._run.log(row, step=step)
        else:
            self._run.log(row, commit=False)
