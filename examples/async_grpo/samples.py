"""The samples that rollout workers send to the trainer, and the buffer for them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from examples.async_grpo.policy import Choice
from examples.async_grpo.task import Prompt


@dataclass(slots=True)
class Sample:
    """One finished answer."""

    prompt: Prompt
    version: int
    """The version of the weights that generated it."""
    choices: list[Choice]
    reward: float
    tokens: int
    """Length of the response, including thinking."""
    tool_calls: int


@dataclass(slots=True)
class Group:
    """All samples of one prompt: GRPO compares them with each other."""

    group_id: str
    prompt: Prompt
    samples: list[Sample] = field(default_factory=list)
    rank: int = 0
    """The worker that generates it."""

    @property
    def version(self) -> int:
        """The oldest version in the group: it is as stale as its stalest sample."""
        return min(sample.version for sample in self.samples)


class Trained(NamedTuple):
    """A group that the trainer uses."""

    group_id: str
    step: int


class SampleBuffer:
    """Groups for the trainer, oldest first. Groups that become too stale are dropped and counted."""

    def __init__(self, max_staleness: int) -> None:
        self._groups: deque[Group] = deque()
        self._max_staleness = max_staleness
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._groups)

    def add(self, group: Group) -> None:
        """Append a group."""
        self._groups.append(group)

    def take(self, count: int, version: int) -> list[Group] | None:
        """Return the oldest usable groups for a trainer at this version; None if there are too few."""
        fresh = deque(group for group in self._groups if version - group.version <= self._max_staleness)
        self.dropped += len(self._groups) - len(fresh)
        self._groups = fresh
        if len(fresh) < count:
            return None
        return [fresh.popleft() for _ in range(count)]
