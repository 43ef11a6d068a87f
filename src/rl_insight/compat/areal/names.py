"""AReaL's enumerations: categories of scopes, and events of sessions."""

from __future__ import annotations

from enum import Enum
from typing import Any


class PerfTraceCategory(str, Enum):
    """What kind of work a scope is."""

    COMPUTE = "compute"
    COMM = "comm"
    IO = "io"
    SYNC = "sync"
    SCHEDULER = "scheduler"
    INSTR = "instr"
    MISC = "misc"


class SessionTraceEvent(str, Enum):
    """What can happen to a session."""

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
_CATEGORIES = {category.value: category.value for category in PerfTraceCategory}
"""By itself: a member is found by its value, too."""


def category_name(category: Any) -> str:
    """Return a category as it is written to files: known ones in their short spelling, others unchanged.

    >>> category_name(" Communication"), category_name("my kernels"), category_name(None)
    ('comm', 'my kernels', 'misc')
    """
    if not isinstance(category, str) or not category:
        return PerfTraceCategory.MISC.value
    known = _CATEGORIES.get(category)  # nearly all calls end here
    if known is not None:
        return known
    text = category.value if isinstance(category, PerfTraceCategory) else str(category)
    name = text.strip().lower()
    name = _LONG_SPELLINGS.get(name, name)
    return name if name in _CATEGORIES else text
