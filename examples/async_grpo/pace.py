"""Simulated delays: nothing here takes long to compute, so the delays of a real system are simulated."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

SECONDS_PER_TOKEN = 0.012


@dataclass(slots=True)
class Pace:
    """Converts simulated to real seconds; `speed=inf` never waits."""

    speed: float = 1.0
    slowdown: float = 1.0
    """More than 1 for a straggler: only slows down generation, like a slow GPU."""

    async def generate(self, tokens: int) -> None:
        """Wait as long as a model would take to generate the tokens."""
        await self.wait(tokens * SECONDS_PER_TOKEN * self.slowdown)

    async def wait(self, seconds: float) -> None:
        """Wait without blocking the other samples of the process."""
        await asyncio.sleep(seconds / self.speed)

    def sleep(self, seconds: float) -> None:
        """Wait, blocking the thread."""
        time.sleep(seconds / self.speed)


def thinking_tokens(rng: np.random.Generator) -> int:
    """Draw the number of thinking tokens: mostly 10 to 60, but one response in a hundred is very long."""
    tokens = rng.lognormal(3.1, 0.6)
    return int(tokens * 8 if rng.random() < 0.01 else tokens) + 1
