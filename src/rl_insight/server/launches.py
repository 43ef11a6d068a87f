"""Assigns the ranks of a launch to a run when several launches have the same name.

On several nodes, `torchrun` does not give its ranks an id that distinguishes one launch from the next. The server sees
them all: a rank that joins again without a restart by torchrun belongs to a new launch.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from threading import Lock

from rl_insight.store.errors import RunNotFoundError
from rl_insight.store.runs import RunDirectory

_MAX_LAUNCHES = 1000
_SAME_LAUNCH_S = 120.0
"""How long after the last rank another one may join a run that has no live process yet."""


class _Launch:
    def __init__(self, run_id: str, now_s: float) -> None:
        self.run_id = run_id
        self.joined: set[tuple[int, int]] = set()
        """Rank and restart count of each process that joined."""
        self.last_s = now_s


class Launches:
    """Assigns runs to launches.

    Args:
        runs: the known runs: which ids are in use, and which runs have ended.
        clock: monotonic seconds.
    """

    def __init__(self, runs: RunDirectory, clock: Callable[[], float] = time.monotonic) -> None:
        self._runs = runs
        self._clock = clock
        self._lock = Lock()
        self._launches: OrderedDict[str, _Launch] = OrderedDict()

    def join(self, name: str, rank: int, restarts: int) -> str:
        """Return the run of a rank of the launch called `name`."""
        with self._lock:
            launch = self._launches.get(name)
            if launch is None or self._is_over(launch, rank, restarts):
                launch = self._launches[name] = _Launch(self._next_run(name, launch, restarts), self._clock())
            launch.joined.add((rank, restarts))
            launch.last_s = self._clock()
            self._launches.move_to_end(name)
            if len(self._launches) > _MAX_LAUNCHES:
                self._launches.popitem(last=False)
            return launch.run_id

    def _is_over(self, launch: _Launch, rank: int, restarts: int) -> bool:
        if (rank, restarts) in launch.joined:
            return True
        if restarts or self._clock() - launch.last_s < _SAME_LAUNCH_S:
            return False
        return not self._is_live(launch.run_id)

    def _next_run(self, name: str, before: _Launch | None, restarts: int) -> str:
        """Return an unused id; after a restart of the server, the id of the run if it is still live."""
        number, run_id = 1, name
        while self._is_taken(run_id, before):
            following = f"{name}-{number + 1}"
            is_last = before is None and not self._is_taken(following, before)
            if is_last and (restarts or self._is_live(run_id)):
                return run_id
            number, run_id = number + 1, following
        return run_id

    def _is_taken(self, run_id: str, before: _Launch | None) -> bool:
        return self._runs.file_of(run_id).exists() or (before is not None and before.run_id == run_id)

    def _is_live(self, run_id: str) -> bool:
        try:
            return self._runs.get(run_id).state in {"running", "stalled"}
        except RunNotFoundError:
            return False
