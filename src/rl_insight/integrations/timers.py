"""A framework's own timers as open states: what they measure is visible while it runs."""

from __future__ import annotations

from typing import Any

from rl_insight.integrations.hooks import between
from rl_insight.monitor import default_monitor as monitor

WHOLE_STEPS = frozenset({"step", "total_step_time", "train_step", "step_total"})
"""Timers around a whole step: spans, so that the phases inside stay the states of the process."""


def timed(name: str) -> Any:
    """Return what a timer of this name records while it runs: a state, or a span for a whole step."""
    return monitor.trace_span(name) if name in WHOLE_STEPS else monitor.trace_state(name)


def record_blocks(timer: type) -> None:
    """Record what a timer class measures as a context manager, also an asynchronous one, by its `message`."""
    for names in (("__enter__", "__exit__"), ("__aenter__", "__aexit__")):
        between(timer, names, lambda call: timed(str(call["self"].message)))


def record_starts(timer: type, *, stop: str, label: str) -> None:
    """Record what a timer class measures from its `start` to its `stop`, by the argument that is the label."""
    between(
        timer,
        ("start", stop),
        lambda call: timed(str(call[label])),
        lambda call: (id(call["self"]), call[label]),
    )
