"""Samples that a framework hands over when they are done, as sessions of the run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from rl_insight.monitor import default_monitor as monitor
from rl_insight.recorder.sessions import Session


class SamplePhase(msgspec.Struct, frozen=True):
    """A part of a sample's life, by the wall clock."""

    name: str
    start_s: float
    end_s: float


def record_sample(
    task_id: Any,
    status: str,
    *,
    start_s: float,
    end_s: float,
    step: int | None = None,
    group_id: Any = None,
    session_id: Any = None,
    reason: str | None = None,
    reward: Any = None,
    tokens: Any = None,
    counters: Mapping[str, Any] | None = None,
    phases: Iterable[SamplePhase] = (),
    **attributes: Any,
) -> None:
    """Record a session that is over already; does nothing while nothing is recorded.

    Args:
        task_id: The dataset item.
        status: How it ended, as in `Session.finalize`.
        start_s: When it began, in seconds since 1970.
        end_s: When it ended.
        step: The training step.
        group_id: The group that its reward is compared in.
        session_id: An id that is unique in the run; one is made when it is left out.
        reason: Why it ended so.
        reward: Its reward; what is not a number is left out.
        tokens: Its length.
        counters: Numbers to keep with it.
        phases: Its parts.
        attributes: Anything else to keep with the session's span.
    """
    session = monitor.session(task_id, session_id=session_id, step=step, group_id=group_id, **attributes)
    if not isinstance(session, Session):
        return
    session.submit()
    offset_ns = session._recorder.clock.offset_ns
    session.start = round(start_s * 1e9) - offset_ns
    for phase in phases:
        opened = session.open_phase(phase.name)
        opened.start = round(phase.start_s * 1e9) - offset_ns
        opened.end = max(round(phase.end_s * 1e9) - offset_ns, opened.start) or 1
    for name, amount in (counters or {}).items():
        if number(amount) is not None:
            session.count(name, amount)
    session.finalize(status, reason, reward=number(reward), tokens=whole(tokens))
    session.end = session.marks["finalized_ts"] = max(round(end_s * 1e9) - offset_ns, session.start) or 1


def number(value: Any) -> float | None:
    """Return a finite number as a framework may give it, else None.

    >>> number(True), number(1), number("1"), number(float("nan"))
    (None, 1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def whole(value: Any) -> int | None:
    """Return a count as a framework may give it, else None."""
    found = number(value)
    return None if found is None else int(found)
