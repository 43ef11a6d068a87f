"""Stacks of the threads and tasks of a process, in one event that the process records on request."""

from __future__ import annotations

from typing import Final

import msgspec

STACKS_EVENT: Final = "rl_insight.stacks"
"""The event name; its attributes are a `Stacks`."""


class Stack(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The stack of one thread or asyncio task."""

    name: str
    kind: str = "thread"
    """`thread` or `task`."""
    frames: list[str] = []
    """`function (file:line)`, innermost first."""
    span: str | None = None
    """The current span in the task's context."""
    session_id: str | None = None
    """The current session in the task's context."""


class Stacks(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All threads and tasks of a process at one point in time, main thread first."""

    stacks: list[Stack] = []
    dropped: int = 0
    """Number of threads and tasks left out."""
    process_id: str | None = None
    """The process, if another process on its host sent the stacks because it could not respond itself."""


def read_told(attributes: str | None) -> Stacks:
    """Return the stacks of an event; empty for an event of the same name from training code."""
    try:
        return msgspec.json.decode(attributes or "{}", type=Stacks)
    except msgspec.MsgspecError:
        return Stacks()
