"""trackio."""

from __future__ import annotations

import importlib
from typing import Any

from rl_insight.integrations.trackers.base import RunTracker


class TrackioTracker(RunTracker):
    """Writes to the run that is given, or to a new one. Steps may come in any order.

    Args:
        run: What `trackio.init` returned.
        options: For `trackio.init`, when no run is given: `project`, `name`, ...
    """

    name = "trackio"

    def __init__(self, run: Any = None, **options: Any) -> None:
        super().__init__(run, lambda: importlib.import_module("trackio").init(**options))
