"""Declarations of the metrics derived from spans."""

from __future__ import annotations

from rl_insight.metrics import COUNTER, GAUGE, HISTOGRAM, Declaration

DURATION_BOUNDS = tuple(round(0.001 * 2 ** (index / 2), 9) for index in range(45))
"""Seconds, from a millisecond to 70 minutes, two bounds per octave."""

STATE_SECONDS = Declaration(
    "state_seconds",
    COUNTER,
    "Seconds spent in each state or session phase, summed over lanes; open intervals are included.",
)
SPANS = Declaration("spans", COUNTER, "Completed spans.")
SPAN_SECONDS = Declaration("span_seconds", COUNTER, "Seconds spent in completed spans.")
SPAN_DURATION_SECONDS = Declaration("span_duration_seconds", HISTOGRAM, "Span durations.")
SESSIONS = Declaration("sessions", COUNTER, "Ended sessions by outcome.")
SESSION_DURATION_SECONDS = Declaration("session_duration_seconds", HISTOGRAM, "Session durations.")
OPEN_SPANS = Declaration("open_spans", GAUGE, "Spans that have been open for longer than one flush.", "sum")
OPEN_SPAN_OLDEST_SECONDS = Declaration("open_span_oldest_seconds", GAUGE, "Age of the oldest open span.", "max")
OPEN_SESSIONS = Declaration("open_sessions", GAUGE, "Open sessions.", "sum")
CURRENT_STEP = Declaration("current_step", GAUGE, "The highest training step seen.", "max")
LAST_STEP_TIMESTAMP_SECONDS = Declaration(
    "last_step_timestamp_seconds", GAUGE, "When the training step last increased, on the collector's clock.", "max"
)
PROCESS_LAST_SEEN_TIMESTAMP_SECONDS = Declaration(
    "process_last_seen_timestamp_seconds", GAUGE, "When a process last reported, on the collector's clock.", "max"
)
DERIVED_OVERFLOW = Declaration(
    "derived_overflow", COUNTER, "Spans counted under __overflow__ because there were too many series."
)

DECLARATIONS = tuple(one for one in list(globals().values()) if isinstance(one, Declaration))
"""All of them, in the order of `/metrics`."""
