"""Record the samples of a framework as sessions, with their text if `recorder.capture_text` is on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from rl_insight.monitor import default_monitor as monitor
from rl_insight.recorder.context import current_session_id, current_step
from rl_insight.recorder.sessions import Session


class SamplePhase(msgspec.Struct, frozen=True):
    """An interval of a sample, in wall-clock time."""

    name: str
    start_s: float
    end_s: float
    payload: Mapping[str, Any] = {}


class FinishedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A finished session, as a framework describes it; times are seconds since 1970."""

    task_id: Any
    """The dataset item."""
    status: str
    """The outcome, as in `Session.finalize`."""
    start_s: float
    end_s: float
    step: int | None = None
    group_id: Any = None
    """The samples that its reward is compared with."""
    session_id: Any = None
    """An id that is unique in the run; generated if None."""
    reason: str | None = None
    reward: float | None = None
    tokens: int | None = None
    phases: tuple[SamplePhase, ...] = ()
    kind: str | None = None
    """`train`, `eval`, or another kind that the framework distinguishes."""
    texts: Mapping[str, Any] = {}
    """Its prompt and response, if text is captured."""


def record_sample(sample: FinishedSample) -> None:
    """Record a finished session; does nothing while recording is off."""
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
    """Return a value as a float if it is a finite number, else None.

    >>> number(True), number(1), number("1"), number(float("nan"))
    (None, 1.0, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def captures_text() -> bool:
    """Return whether this process records the text of any sessions."""
    recorder = monitor.active_recorder()
    return recorder is not None and recorder.texts is not None


def takes_text() -> bool:
    """Return whether the current session is sampled for text: check it before decoding tokens."""
    recorder, session_id = monitor.active_recorder(), current_session_id.get()
    return recorder is not None and session_id is not None and recorder.takes_text(session_id, current_step.get())


def note_texts(span: Any, **texts: Any) -> None:
    """Add text to an open span or session; None values are skipped."""
    for key, value in texts.items():
        if value is not None:
            span.set_attribute(key, value)


def field_of(value: Any, name: str) -> Any:
    """Return a field of an object or a mapping; None if it is missing or raises."""
    try:
        return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
    except Exception:  # noqa: BLE001  # a user's property may raise anything
        return None
