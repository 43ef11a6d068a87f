"""Record a framework's own timers as states that are visible while they run."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import between
from rl_insight.monitor import default_monitor as monitor

WHOLE_STEPS = frozenset({"step", "total_step_time", "train_step", "step_total"})
"""Timers of an entire step. They become spans, so that the phases inside remain the states of the process."""


def timed(name: str) -> Any:
    """Return the state that a timer of this name records; a span if it measures an entire step."""
    return monitor.trace_span(name) if name in WHOLE_STEPS else monitor.trace_state(name)


def record_blocks(module: ModuleType) -> None:
    """Record a module's `Timer`, a sync and async context manager, named by its `message`."""
    for names in (("__enter__", "__exit__"), ("__aenter__", "__aexit__")):
        between(module.Timer, names, lambda call: timed(str(call["self"].message)))


def record_starts(module: ModuleType, *, stop: str, label: str) -> None:
    """Record a module's `Timer` from its `start` to its `stop` method, named by the argument `label`."""
    between(
        module.Timer,
        ("start", stop),
        lambda call: timed(str(call[label])),
        lambda call: (id(call["self"]), call[label]),
    )
