"""Tracks active processes and runs, so that the state of inactive ones can be freed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from rl_insight.metrics import LabelItems
from rl_insight.schema import Process

_SECOND = 1_000_000_000
SWEEP_EVERY_NS = 60 * _SECOND
FORGET_AFTER_S = 3600.0
"""After this silence, a process counts as ended."""
GRACE_S = 300.0
"""How long the metrics of an ended run stay: several times the usual scrape interval."""


class RunKey(NamedTuple):
    """The identity of a run; any part may be empty."""

    project: str
    experiment_name: str
    run_id: str

    @property
    def labels(self) -> LabelItems:
        """The labels of every series of the run, without empty ones."""
        return _labels_of(self)


@lru_cache(maxsize=64)
def _labels_of(run: RunKey) -> LabelItems:
    """Return the labels of a run: the same objects for all of its series, of which there may be 500,000."""
    pairs = (("experiment_name", run.experiment_name), ("project", run.project), ("run_id", run.run_id))
    return tuple(pair for pair in pairs if pair[1])


def run_of(process: Process) -> RunKey:
    """Return the run of a process."""
    return RunKey(process.project, process.experiment_name, process.run_id)


class RunActivity:
    """When each process and run last reported; not thread-safe.

    A process ends when `end` is called, or after `forget_after_s` of silence. A run ends when all its processes have
    ended and no batch of it arrived for `grace_s`. A sweep calls `forget` and `drop` with what has ended.
    """

    def __init__(
        self,
        forget: Callable[[str], None],
        drop: Callable[[RunKey], None],
        *,
        forget_after_s: float = FORGET_AFTER_S,
        grace_s: float = GRACE_S,
    ) -> None:
        self._forget, self._drop = forget, drop
        self._forget_after_ns = int(forget_after_s * _SECOND)
        self._grace_ns = int(min(grace_s, forget_after_s) * _SECOND)
        self._processes: OrderedDict[str, tuple[int, RunKey]] = OrderedDict()
        """The most recent is last."""
        self._runs: OrderedDict[RunKey, int] = OrderedDict()
        self._swept_ns = 0

    def note(self, process: Process, now_ns: int) -> RunKey:
        """Record a batch of a process; return its run."""
        run = run_of(process)
        self._processes[process.process_id] = (now_ns, run)
        self._processes.move_to_end(process.process_id)
        self._runs[run] = now_ns
        self._runs.move_to_end(run)
        return run

    def end(self, process_id: str) -> None:
        """Record that a process has ended."""
        self._processes.pop(process_id, None)

    def drop(self, run_id: str) -> list[RunKey]:
        """Forget a deleted run; return one key per project and experiment that used its id."""
        dropped = [run for run in self._runs if run.run_id == run_id]
        for run in dropped:
            del self._runs[run]
        for process_id in [name for name, (_, run) in self._processes.items() if run.run_id == run_id]:
            del self._processes[process_id]
        return dropped

    def sweep(self, now_ns: int, every_ns: int = 0) -> None:
        """Forget processes and drop runs that have ended, unless the last sweep was less than `every_ns` ago."""
        if now_ns - self._swept_ns < every_ns:
            return
        self._swept_ns = now_ns
        while self._processes:
            process_id, (heard_ns, _) = next(iter(self._processes.items()))
            if heard_ns > now_ns - self._forget_after_ns:
                break
            del self._processes[process_id]
            self._forget(process_id)
        live = {run for _, run in self._processes.values()}
        ended = [run for run, heard_ns in self._runs.items() if run not in live and heard_ns <= now_ns - self._grace_ns]
        for run in ended:
            del self._runs[run]
            self._drop(run)

    def __len__(self) -> int:
        return len(self._runs)
