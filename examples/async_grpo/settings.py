"""What every process of the example needs to know."""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from examples.async_grpo.faults import NO_FAULT, Fault
from examples.async_grpo.interruptions import Interruptions
from examples.async_grpo.samples import Group
from examples.async_grpo.weights import WeightStore

PROJECT = "examples"
EXPERIMENT = "async_grpo"


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices of a run; the launcher fills it from the command line."""

    run_id: str
    insight_config: dict[str, Any] = field(default_factory=dict)
    """Handed to `insight.init`: says where the events go."""
    steps: int | None = None
    """None trains until it is stopped."""
    workers: int = 3
    slots: int = 6
    """Samples that one worker has in flight at a time."""
    group_size: int = 8
    groups_per_step: int = 8
    max_staleness: int = 4
    """Versions that a group may be behind the trainer."""
    seed: int = 0
    speed: float = 1.0
    straggler: int | None = None
    """The rank of a worker that generates 3 times slower."""
    hang: bool = False
    """One tool call never returns."""
    errors: bool = False
    """The tool fails in bursts."""
    fault: Fault = NO_FAULT
    """What goes wrong on purpose."""
    interruptions: Interruptions = field(default_factory=Interruptions)
    """What else the trainer does."""


@dataclass(frozen=True, slots=True)
class Links:
    """What connects the processes."""

    stop: Event
    """Set when the training is to end."""
    stop_services: Event
    """Set after that, when nobody needs the tool server any more."""
    groups: Queue[Group]
    """Bounded: workers pause when the trainer cannot keep up."""
    weights: WeightStore
