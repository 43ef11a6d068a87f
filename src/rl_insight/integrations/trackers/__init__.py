"""Experiment trackers: what RL-Insight measures, written where a team already looks. None of them is required."""

from __future__ import annotations

from typing import Any

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
        ValueError: a name that is not known.
        ImportError: its library is not installed.
    """
    if name not in _TRACKERS:
        raise ValueError(f"unknown tracker {name!r}. Choose from: {', '.join(sorted(_TRACKERS))}.")
    tracker: Tracker = _TRACKERS[name](**options)
    return tracker
