"""SwanLab."""

from __future__ import annotations

import importlib
from typing import Any

from rl_insight.integrations.trackers.base import RunTracker


class SwanLabTracker(RunTracker):
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
        super().__init__(run or active, lambda: swanlab.init(**options))
