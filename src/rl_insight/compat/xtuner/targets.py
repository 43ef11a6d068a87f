"""Whom a trace is about: the fields that a producer's objects carry, read and never written."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

STEPS = ("train_step", "model_step", "producer_future_step")
FIELDS = ("task_name", "uid", "session_uid", *STEPS)

steps_in_context: ContextVar[Mapping[str, Any] | None] = ContextVar("rl_insight_xtuner_steps", default=None)
"""The steps that `inject_trace_context` set; an object's own come first."""


def describe(target: Any, **more: Any) -> dict[str, Any]:
    """Return the fields of a target (an object, a mapping, or a list of them: its first), and its `trace_id`.

    >>> describe({"task_name": "gsm8k", "uid": 17})["trace_id"]
    'gsm8k:17'
    """
    if isinstance(target, (list, tuple)):
        target = target[0] if target else None
    known = {**(steps_in_context.get() or {})}
    known.update({name: value for name in FIELDS if (value := _field(target, name)) is not None})
    known.update({name: value for name, value in more.items() if value is not None})
    known["trace_id"] = f"{known.get('task_name', 'task')}:{known.get('uid', 'unknown')}"
    if any(name in known for name in STEPS):
        known.setdefault("produce_batch_id", "/".join(f"{name}={known.get(name)}" for name in STEPS))
    return known


def has_identity(target: Any) -> bool:
    """Tell whether a target, or the first of a list, says who it is."""
    if isinstance(target, (list, tuple)):
        target = target[0] if target else None
    return _field(target, "uid") is not None


def _field(target: Any, name: str) -> Any:
    try:
        return target.get(name) if isinstance(target, Mapping) else getattr(target, name, None)
    except Exception:  # noqa: BLE001  # a property of the user's that raises
        return None
