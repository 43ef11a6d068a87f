"""When open work and steps count as overdue: one definition for the answers, the page and the rules of diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final, NamedTuple

import numpy as np

from rl_insight.schema.names import PHASE_SEGMENT, Severity


class WorkLimit(NamedTuple):
    """The ages from which open work is overdue, in seconds."""

    shortest_s: float
    """Younger work is never overdue."""
    factor: float
    """Multiple of the 99th percentile of its duration."""
    worse_s: float
    """The age from which it is more severe."""
    severities: tuple[Severity, Severity]
    """Once it is overdue, and from `worse_s` on."""


class StepLimit(NamedTuple):
    """The age from which a running step is overdue: a minimum in seconds, and a multiple of its usual duration."""

    shortest_s: float
    factor: float


STUCK_WORK: Final = WorkLimit(12, 5, 60, ("warning", "critical"))
STUCK_PHASE: Final = WorkLimit(20, 5, 60, ("info", "warning"))
"""For phases of sessions: one of many sessions rarely holds up the run."""
LEAST_SEEN: Final = 3
"""How many spans must have finished for their duration to be known."""

SUSPECT_STEP: Final = StepLimit(30, 3)
"""A warning; a multiple of the 99th percentile of the steps before."""
HUNG_STEP: Final = StepLimit(120, 10)
"""Critical; a multiple of their median."""
FIRST_STEP_S: Final = 3600
"""Critical before any step has finished."""
LEAST_STEPS: Final = 3
FEW_STEPS_FACTOR: Final = 6
"""How much longer a step may take while fewer than `LEAST_STEPS` have finished."""

SLOW_STEP: Final = 1.6
"""A finished step is slow from this multiple of a typical one on."""
SLOWER_STEPS: Final = 0.2
"""The latest steps are slower from this change on: 20%."""


def limit_s(long_s: float, shortest_s: float, factor: float) -> float:
    """Return the age from which work is overdue; 99% of it took at most `long_s`.

    >>> limit_s(1.0, 12, 5), limit_s(10.0, 12, 5)
    (12, 50.0)
    """
    return max(shortest_s, factor * long_s)


def work_severity(segment: str, age_s: float, long_s: float | None, seen: int) -> Severity | None:
    """Return how severe the age of an open span is; None if it is not overdue or its usual duration is unknown.

    >>> work_severity("state_interval", 55, 10.0, 3), work_severity("state_interval", 61, 10.0, 3)
    ('warning', 'critical')
    >>> work_severity("phase", 55, 10.0, 3), work_severity("state_interval", 45, 10.0, 3)
    ('info', None)
    """
    if long_s is None or seen < LEAST_SEEN:
        return None
    limit = STUCK_PHASE if segment == PHASE_SEGMENT else STUCK_WORK
    if age_s <= limit_s(long_s, limit.shortest_s, limit.factor):
        return None
    return limit.severities[age_s > limit.worse_s]


def running_step_severity(age_s: float, before_s: Sequence[float]) -> Severity | None:
    """Return how severe the age of a running step is, given the durations of the steps before.

    >>> [running_step_severity(age_s, [10.0] * 5) for age_s in (30, 31, 121)]
    [None, 'warning', 'critical']
    """
    if not before_s:
        return "critical" if age_s > FIRST_STEP_S else None
    is_known = len(before_s) >= LEAST_STEPS
    hung_s = max(HUNG_STEP.shortest_s, HUNG_STEP.factor * median(before_s))
    if age_s > hung_s * (1 if is_known else FEW_STEPS_FACTOR):
        return "critical"
    suspect_s = max(SUSPECT_STEP.shortest_s, SUSPECT_STEP.factor * float(np.quantile(before_s, 0.99)))
    return "warning" if is_known and age_s > suspect_s else None
