"""trackio."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from rl_insight.integrations.trackers.base import Tracker


class TrackioTracker(Tracker):
    """Writes to the run that is given, or to a new one. Steps may come in any order.

    Args:
        run: What `trackio.init` returned.
        options: For `trackio.init`, when no run is given: `project`, `name`, ...
    """

    name = "trackio"

    def __init__(self, run: Any = None, **options: Any) -> None:
        self._is_ours = run is None
        self._run = run or importlib.import_module("trackio").init(**options)

    def log(self, values: Mapping[str, float], step: int | None) -> None:
        """Write values of one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run if it was begun here."""
        run, self._run = self._run, None
        if run is not None and self._is_ours:
            run.finish()
