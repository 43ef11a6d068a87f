"""Samples that a framework hands over when they are done, as sessions of the run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from rl_insight.monitor import default_monitor as monitor
from rl_insight.recorder.sessions import Session


class SamplePhase(msgspec.Struct, frozen=True):
    """A part of a sample's life, by the wall clock."""

    name: str
    start_s: float
    end_s: float
    payload: Mapping[str, Any] = {}


class FinishedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A session that is over, as a framework tells about it; times are seconds since 1970."""

    task_id: Any
    """The dataset item."""
    status: str
    """How it ended, as in `Session.finalize`."""
    start_s: float
    end_s: float
    step: int | None = None
    group_id: Any = None
    """The group that its reward is compared in."""
    session_id: Any = None
    """An id that is unique in the run; one is made when it is left out."""
    reason: str | None = None
    """Why it ended so."""
    reward: float | None = None
    tokens: int | None = None
    """Its length."""
    phases: tuple[SamplePhase, ...] = ()
    kind: str | None = None
    """`train`, `eval`, or whatever else the framework tells apart."""
    texts: Mapping[str, Any] = {}
    """Its prompt and response, where text is captured."""


def record_sample(sample: FinishedSample) -> None:
    """Record a session that is over already; does nothing while nothing is recorded."""
    attributes = {**sample.texts} if sample.kind is None else {**sample.texts, "kind": sample.kind}
    session = monitor.session(
        sample.task_id, session_id=sample.session_id, step=sample.step, group_id=sample.group_id, **attributes
    )
    if not isinstance(session, Session):
        return
    session.submit()
    offset_ns = session._recorder.clock.offset_ns
    session.start = round(sample.start_s * 1e9) - offset_ns
    for phase in sample.phases:
        opened = session.open_phase(phase.name, phase.payload)
        opened.start = round(phase.start_s * 1e9) - offset_ns
        opened.end = max(round(phase.end_s * 1e9) - offset_ns, opened.start) or 1
    session.finalize(sample.status, sample.reason, reward=sample.reward, tokens=sample.tokens)
    session.end = session.marks["finalized_ts"] = max(round(sample.end_s * 1e9) - offset_ns, session.start) or 1


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
