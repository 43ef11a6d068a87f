"""Stacks: where the threads and tasks of a process are, as one event that the process records when it is asked."""

from __future__ import annotations

from typing import Final

import msgspec

STACKS_EVENT: Final = "rl_insight.stacks"
"""The event's name; its attributes are a `Stacks`."""


class Stack(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where one thread or asyncio task is."""

    name: str
    kind: str = "thread"
    """`thread` or `task`."""
    frames: list[str] = []
    """`function (file:line)`, the innermost first."""
    span: str | None = None
    """The span that the task's context carries."""
    session_id: str | None = None
    """The session that the task's context carries."""


class Stacks(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """All threads and tasks of a process at one moment, the main thread first."""

    stacks: list[Stack] = []
    dropped: int = 0
    """Threads and tasks that were left out."""
    process_id: str | None = None
    """Whose they are, where another process of its host has sent them: it could not answer itself."""


def read_told(attributes: str | None) -> Stacks:
    """Return the stacks of an event; none for an event of the same name that training code recorded."""
    try:
        return msgspec.json.decode(attributes or "{}", type=Stacks)
    except msgspec.MsgspecError:
        return Stacks()
