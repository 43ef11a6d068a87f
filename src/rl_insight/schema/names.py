"""Names that are the same everywhere: of metrics and labels as Prometheus wants them, and of kinds of spans."""

from __future__ import annotations

import re
from typing import Final

DEFAULT_NAMESPACE: Final = "rl_insight_monitor"
TRAINER_JOB: Final = "trainer_metrics"
"""The name under which a hub's `/metrics` is registered, unless its client says another one."""
RESERVED_LABELS: Final = frozenset({"project", "experiment_name", "run_id"})
OVERFLOW_LABEL: Final = "__overflow__"

TARGET_PROCESS_PREFIX: Final = "scrape-"
"""Begins the ids of the processes that scrape targets are in their runs."""

CONFIG_EVENT: Final = "rl_insight.config"
"""The events that carry a run's configuration: each of their attributes is one dotted key."""

TEXTS_EVENT: Final = "rl_insight.texts"
"""The events that carry texts of a span which was sent before its session turned out to be of interest."""

SESSION_SEGMENT: Final = "session"
PHASE_SEGMENT: Final = "phase"
TASK_SEGMENT: Final = "task"
"""Segments of the spans of sessions, their phases, and tasks."""

_NOT_IN_METRIC = re.compile(r"[^a-zA-Z0-9_:]")
_NOT_IN_LABEL = re.compile(r"[^a-zA-Z0-9_]")


def metric_name(name: str) -> str:
    """Return a name that Prometheus accepts; what it does not allow becomes ``_``.

    >>> metric_name("timing_s/step"), metric_name("99th")
    ('timing_s_step', '_99th')
    """
    cleaned = _NOT_IN_METRIC.sub("_", name)
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def label_name(name: str) -> str:
    """Return a label name that Prometheus accepts; ``__`` in front is kept for Prometheus itself."""
    cleaned = _NOT_IN_LABEL.sub("_", name)
    if cleaned.startswith("__"):
        cleaned = "_" + cleaned.lstrip("_")
    return f"_{cleaned}" if not cleaned or cleaned[0].isdigit() else cleaned


def process_name(role: str | None, rank: int | None, otherwise: str = "process") -> str:
    """Return a process as people call it: its role and rank.

    >>> process_name("trainer", 3), process_name("", None)
    ('trainer 3', 'process')
    """
    name = role or otherwise
    return name if rank is None else f"{name} {rank}"
