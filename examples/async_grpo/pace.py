"""How long things take. Nothing is computed that would take long, so the waiting of a real system is simulated."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import numpy as np

SECONDS_PER_TOKEN = 0.012


@dataclass(slots=True)
class Pace:
    """Turns simulated seconds into real ones; `speed=inf` waits for nothing."""

    speed: float = 1.0
    slowdown: float = 1.0
    """More than 1 for a straggler: applies to generation alone, as a slow GPU would."""

    async def generate(self, tokens: int) -> None:
        """Wait as long as a model would take to write so many tokens."""
        await self.wait(tokens * SECONDS_PER_TOKEN * self.slowdown)

    async def wait(self, seconds: float) -> None:
        """Wait without holding up the other samples of the process."""
        await asyncio.sleep(seconds / self.speed)

    def sleep(self, seconds: float) -> None:
        """Wait where nothing else goes on."""
        time.sleep(seconds / self.speed)


def thinking_tokens(rng: np.random.Generator) -> int:
    """Draw how long a response thinks: mostly 10 to 60 tokens, but one in a hundred goes on and on."""
    tokens = rng.lognormal(3.1, 0.6)
    return int(tokens * 8 if rng.random() < 0.01 else tokens) + 1
