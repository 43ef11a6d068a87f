"""SwanLab."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rl_insight.integrations.trackers.base import Tracker


class SwanLabTracker(Tracker):
    """Writes to the run that is given or active, or to a new one.

    SwanLab keeps one value for a key and step: of values that come twice it keeps the first.

    Args:
        run: What `swanlab.init` returned.
        options: For `swanlab.init`, when there is no run yet: `project`, `mode`, `logdir`, ...
    """

    name = "swanlab"

    def __init__(self, run: Any = None, **options: Any) -> None:
        swanlab: Any = importlib.import_module("swanlab")
        active = swanlab.get_run() if hasattr(swanlab, "get_run") and not options and run is None else None
        self._is_ours = run is None and active is None
        self._run = run or active or swanlab.init(**options)

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write values of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run if it was begun here."""
        run, self._run = self._run, None
        if run is not None and self._is_ours:
            run.finish()
