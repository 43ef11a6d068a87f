"""The metrics that are made from spans: their names, kinds and meaning, and how a snapshot of them looks."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from rl_insight.collector.series import LabelItems
from rl_insight.schema.names import MetricKind

DURATION_BOUNDS = tuple(round(0.001 * 2 ** (index / 2), 9) for index in range(45))
"""Seconds, from a millisecond to 70 minutes, two bounds an octave."""

FAMILIES: dict[str, tuple[MetricKind, str]] = {
    "state_seconds": (
        "counter",
        "Time in a state or in a phase of a session, on all lanes; what runs counts as it goes on.",
    ),
    "spans": ("counter", "Spans that ended."),
    "span_seconds": ("counter", "Time in spans that ended."),
    "span_duration_seconds": ("histogram", "How long spans took."),
    "sessions": ("counter", "Sessions that ended, by outcome."),
    "session_duration_seconds": ("histogram", "How long sessions took."),
    "open_spans": ("gauge", "Spans that are open for longer than one flush."),
    "open_span_oldest_seconds": ("gauge", "For how long the oldest of the open spans has been open."),
    "open_sessions": ("gauge", "Sessions that are open."),
    "current_step": ("gauge", "The highest training step that was seen."),
    "last_step_timestamp_seconds": ("gauge", "When the training step last grew, by the collector's clock."),
    "process_last_seen_timestamp_seconds": ("gauge", "When a process was last heard of, by the collector's clock."),
    "derived_overflow": ("counter", "Spans filed under __overflow__, because there were too many series."),
}
"""Kind and documentation by name; a counter's without `_total`."""

DERIVED_NAMES = frozenset(f"{name}_total" if kind == "counter" else name for name, (kind, _) in FAMILIES.items())
"""Exposed names, without the namespace."""


class Exemplar(NamedTuple):
    """One span that stands for the others in its bucket."""

    trace_id: str
    seconds: float
    time_ns: int


class Durations(msgspec.Struct, frozen=True):
    """A distribution over `DURATION_BOUNDS`; the last count is for what is longer than all of them."""

    counts: list[int]
    seconds: float
    exemplars: dict[int, Exemplar]
    """By position in `counts`."""


class DerivedFamily(msgspec.Struct, frozen=True):
    """All series of one derived metric at one moment."""

    name: str
    """Without a namespace; a counter's without `_total`."""
    kind: MetricKind
    documentation: str
    values: list[tuple[LabelItems, float]] = []
    durations: list[tuple[LabelItems, Durations]] = []
