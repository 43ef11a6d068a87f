"""Experiment trackers: what RL-Insight measures, written where a team already looks. None of them is required."""

from __future__ import annotations

from typing import Any

from rl_insight.errors import ConfigError
from rl_insight.integrations.trackers.base import Tracker, TrackerFeed
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.integrations.trackers.mlflow import MlflowTracker
from rl_insight.integrations.trackers.sink import TrackerSink, create_tracker_sink, send_to_trackers
from rl_insight.integrations.trackers.swanlab import SwanLabTracker
from rl_insight.integrations.trackers.tensorboard import TensorBoardTracker
from rl_insight.integrations.trackers.trackio import TrackioTracker
from rl_insight.integrations.trackers.wandb import WandbTracker

__all__ = [
    "InsightLogger",
    "MlflowTracker",
    "SwanLabTracker",
    "TensorBoardTracker",
    "Tracker",
    "TrackerFeed",
    "TrackerSink",
    "TrackioTracker",
    "WandbTracker",
    "create_tracker",
    "create_tracker_sink",
    "send_to_trackers",
]

_TRACKERS: dict[str, Any] = {
    tracker.name: tracker
    for tracker in (MlflowTracker, SwanLabTracker, TensorBoardTracker, TrackioTracker, WandbTracker)
}


def create_tracker(name: str, **options: Any) -> Tracker:
    """Return the tracker called `name`, made with these options.

    Raises:
        ConfigError: an unknown name.
        ImportError: its library is not installed.
    """
    check_tracker(name)
    tracker: Tracker = _TRACKERS[name](**options)
    return tracker


def check_tracker(name: str) -> None:
    """Refuse an unknown name.

    Raises:
        ConfigError: names those that are known.
    """
    if name not in _TRACKERS:
        raise ConfigError(f"unknown tracker {name!r}: choose from {', '.join(sorted(_TRACKERS))}.")
