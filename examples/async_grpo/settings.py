"""The settings that all processes of the example share."""

from __future__ import annotations

from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from typing import Any

from examples.async_grpo.faults import NO_FAULT, Fault
from examples.async_grpo.interruptions import Interruptions
from examples.async_grpo.samples import Group, Trained
from examples.async_grpo.weights import WeightStore

PROJECT = "examples"
EXPERIMENT = "async_grpo"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a run, from the command line."""

    run_id: str
    insight_config: dict[str, Any] = field(default_factory=dict)
    """The configuration for `insight.init`: where the events go."""
    steps: int | None = None
    """None: train until stopped."""
    workers: int = 3
    slots: int = 6
    """Samples that a worker has in flight."""
    group_size: int = 8
    groups_per_step: int = 8
    max_staleness: int = 4
    """How many versions a group may be behind the trainer."""
    seed: int = 0
    speed: float = 1.0
    straggler: int | None = None
    """The rank of a worker that generates 3 times slower."""
    hang: bool = False
    """One tool call never returns."""
    errors: bool = False
    """The tool fails in bursts."""
    fault: Fault = NO_FAULT
    """The injected fault."""
    interruptions: Interruptions = field(default_factory=Interruptions)
    """What the trainer does besides training."""


@dataclass(frozen=True, slots=True)
class Links:
    """The objects that connect the processes."""

    stop: Event
    """Set when training must stop."""
    stop_services: Event
    """Set after that, when the tool server is no longer needed."""
    groups: Queue[Group]
    """Bounded: workers pause when the trainer cannot keep up."""
    weights: WeightStore
    trained: tuple[Queue[Trained], ...] = ()
    """For each worker, which of its groups the trainer uses in which step."""
