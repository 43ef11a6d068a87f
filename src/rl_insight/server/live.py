"""Recent changes: a small note per commit, kept for a while so that a lost connection can resume."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rl_insight.schema import NO_STEP, Batch
from rl_insight.schema.tables import RECORDED, row_counts

_KEPT_NOTES = 600
_KEPT_RUNS = 64


class LiveChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """The additions of one or more commits to a run: enough for a page to know which views to refresh."""

    version: int
    """Increases with each commit of the server; a client resumes after the last version it has seen."""
    run_id: str
    batches: int = 0
    spans: int = 0
    events: int = 0
    logs: int = 0
    samples: int = 0
    histograms: int = 0
    sessions: int = 0
    findings: int = 0
    """Findings opened, changed or resolved."""
    step: int | None = None
    """The highest training step among the new spans and samples."""
    latest_ns: int = 0
    """When the newest batch was sent, by its sender's clock."""
    resync: bool = False
    """The client missed more than is kept, and must refresh everything."""


class _RunChanges:
    """The latest changes of a run; `lost` is the version of the newest one that is not kept."""

    def __init__(self, lost: int) -> None:
        self._lost = lost
        self._changes: deque[LiveChange] = deque()

    @property
    def latest(self) -> int:
        """The version of the newest change."""
        return self._changes[-1].version

    def add(self, change: LiveChange) -> None:
        """Add a change, and drop the oldest if there are too many."""
        self._changes.append(change)
        if len(self._changes) > _KEPT_NOTES:
            self._lost = self._changes.popleft().version

    def since(self, version: int) -> LiveChange | None:
        """Return all changes after a version as one; None if there are none."""
        missed = [change for change in self._changes if change.version > version]
        return _merge(missed, is_gap=self._lost > version) if missed else None


class LiveNotes:
    """Collects changes on the store writer's thread; they can be read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self._notes: dict[str, _RunChanges] = {}
        self._evicted = 0
        """The version of the newest change of a run whose changes are no longer kept."""

    @property
    def version(self) -> int:
        """The latest version."""
        return self._version

    def note(self, run_id: str, batches: Sequence[Batch]) -> None:
        """Record a commit."""
        self._add(_describe(run_id, batches))

    def _add(self, change: LiveChange) -> None:
        run_id = change.run_id
        with self._lock:
            self._version += 1
            notes = self._notes.pop(run_id, None) or _RunChanges(self._evicted)  # the run may have been evicted before
            self._notes[run_id] = notes  # the most recently written run is last
            notes.add(msgspec.structs.replace(change, version=self._version))
            if len(self._notes) > _KEPT_RUNS:
                self._evicted = max(self._evicted, self._notes.pop(next(iter(self._notes))).latest)

    def note_findings(self, run_id: str, count: int) -> None:
        """Record findings that were written."""
        self._add(LiveChange(version=0, run_id=run_id, findings=count))

    def since(self, version: int, run_id: str | None = None) -> list[LiveChange]:
        """Return the changes after a version: one merged change per run, or for one run.

        A version that is too old, or from an earlier server, results in a `resync`; its run is empty if it is not
        known which runs have changed.
        """
        with self._lock:
            runs = list(self._notes) if run_id is None else [run_id] if run_id in self._notes else []
            if version > self._version:
                return [LiveChange(self._version, run, resync=True) for run in runs or [run_id or ""]]
            changes = [change for run in runs if (change := self._notes[run].since(version)) is not None]
            if self._evicted > version and (run_id is None or not runs):
                changes.insert(0, LiveChange(self._evicted, run_id or "", resync=True))
            return changes


def _describe(run_id: str, batches: Sequence[Batch]) -> LiveChange:
    rows: dict[str, Any] = {name: sum(row_counts(batches, name)) for name in RECORDED}
    steps = b"".join([table.step for batch in batches for table in (batch.spans, batch.samples)])
    step = int(np.frombuffer(steps, "<i8").max(initial=NO_STEP))
    return LiveChange(
        version=0,
        run_id=run_id,
        batches=len(batches),
        **rows,
        step=None if step == NO_STEP else step,
        latest_ns=max(batch.sent_ns for batch in batches),
    )


def _merge(changes: list[LiveChange], *, is_gap: bool) -> LiveChange:
    last = changes[-1]
    names = ("batches", *RECORDED, "findings")
    added: dict[str, Any] = {name: sum(getattr(change, name) for change in changes) for name in names}
    steps = [change.step for change in changes if change.step is not None]
    return LiveChange(
        version=last.version,
        run_id=last.run_id,
        **added,
        step=max(steps) if steps else None,
        latest_ns=max(change.latest_ns for change in changes),
        resync=is_gap,
    )
