"""Texts of sessions as frameworks have them: recorded only with `recorder.capture_text`."""

from __future__ import annotations

from typing import Any

from rl_insight.monitor import default_monitor as monitor
from rl_insight.recorder.context import current_session_id, current_step


def captures_text() -> bool:
    """Return whether this process records texts of sessions at all."""
    recorder = monitor.active_recorder()
    return recorder is not None and recorder.texts is not None


def takes_text() -> bool:
    """Return whether texts of the current session are recorded as they come: asked before tokens are decoded."""
    recorder, session_id = monitor.active_recorder(), current_session_id.get()
    return recorder is not None and session_id is not None and recorder.takes_text(session_id, current_step.get())


def note_texts(span: Any, **texts: Any) -> None:
    """Add texts to a span or session that has not ended; those that are None are left out."""
    for key, value in texts.items():
        if value is not None:
            span.set_attribute(key, value)
