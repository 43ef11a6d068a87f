"""Experiment trackers: write RL-Insight's metrics to the tools a team already uses. All of them are optional."""

from __future__ import annotations

from rl_insight.integrations.trackers.base import Tracker, TrackerFeed
from rl_insight.integrations.trackers.libraries import (
    MlflowTracker,
    SwanLabTracker,
    TensorBoardTracker,
    TrackioTracker,
    WandbTracker,
    create_tracker,
)
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.integrations.trackers.sink import TrackerSink, create_tracker_sink, send_to_trackers

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
