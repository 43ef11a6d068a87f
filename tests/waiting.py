"""Waiting for an effect of another thread or process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from rl_insight.waiting import wait_for

ResultT = TypeVar("ResultT")


def wait_until(predicate: Callable[[], ResultT], timeout_s: float = 60.0) -> ResultT:
    """Return the first true result of a predicate; fail if there is none in time."""
    found = wait_for(predicate, timeout_s, poll_s=0.01)
    assert found, f"did not come true within {timeout_s} s"
    return found
