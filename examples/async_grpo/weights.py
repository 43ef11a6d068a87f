"""Weight sync: the trainer publishes versions, the workers pull the newest one. Older versions are not kept."""

from __future__ import annotations

from multiprocessing.context import SpawnContext

import numpy as np

from examples.async_grpo.policy import FEATURES, TOKENS, Policy

NOTHING_PUBLISHED = -1


class WeightStore:
    """A policy in shared memory."""

    def __init__(self, context: SpawnContext) -> None:
        self._version = context.Value("q", NOTHING_PUBLISHED)
        self._weights = context.Array("d", FEATURES * TOKENS)

    @property
    def version(self) -> int:
        """The newest version; `NOTHING_PUBLISHED` before the first."""
        return int(self._version.value)

    def publish(self, policy: Policy) -> None:
        """Publish a policy as the newest one."""
        with self._version.get_lock():
            self._weights[:] = policy.weights.ravel().tolist()
            self._version.value = policy.version

    def pull(self) -> Policy:
        """Return a copy of the newest policy."""
        with self._version.get_lock():
            return Policy(np.array(self._weights[:]).reshape(FEATURES, TOKENS), self._version.value)
