"""AReaL's enumerations: categories of scopes, and events of sessions."""

from __future__ import annotations

from enum import Enum
from typing import Any


class PerfTraceCategory(str, Enum):
    """The kind of work in a scope."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"


class SessionTraceEvent(str, Enum):
    """Events of a session."""

    FINALIZED = "finalized"
    GENERATE_START = "generate_start"
    GENERATE_END = "generate_end"
    REWARD_START = "reward_start"
    REWARD_END = "reward_end"
    TOOLCALL_START = "toolcall_start"
    TOOLCALL_END = "toolcall_end"


_LONG_SPELLINGS = {
    "communication": "comm",
    "synchronization": "sync",
    "scheduling": "scheduler",
    "instrumentation": "instr",
}
_CATEGORIES = frozenset(category.value for category in PerfTraceCategory)


def category_name(category: Any) -> str:
    """Return a category as it is written to files: known ones in short form, others unchanged.

    >>> category_name(" Communication"), category_name("my kernels"), category_name(None)
    ('comm', 'my kernels', 'misc')
    """
    if category.__class__ is PerfTraceCategory:  # nearly all calls end here; hashing a member costs 0.3 us
        value: str = category._value_
        return value
    if not isinstance(category, str) or not category:
        return "misc"
    name = category.strip().lower()
    name = _LONG_SPELLINGS.get(name, name)
    return name if name in _CATEGORIES else str(category)
