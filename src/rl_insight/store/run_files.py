"""Run files: names, sizes, and the information that the list of runs shows."""

from __future__ import annotations

import hashlib
import logging
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from rl_insight.intake import silence_ns
from rl_insight.schema.names import TARGET_PROCESS_PREFIX
from rl_insight.store.errors import StoreError

if TYPE_CHECKING:
    import duckdb

logger = logging.getLogger(__name__)

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
SUFFIX = ".duckdb"
SCRAPED_RUN = "targets"
"""Where earlier versions stored metrics of targets without a run; it is never the latest run."""

RunState = Literal["running", "stalled", "silent", "ended"]


class RunInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run as the list of runs shows it."""

    run_id: str
    file: str
    """The file's name in the directory of runs."""
    size_bytes: int
    modified_s: float
    project: str = ""
    experiment_name: str = ""
    processes: int = 0
    started_ns: int | None = None
    """The earliest recorded time, by the aligned clocks of the run; None if nothing was recorded."""
    ended_ns: int | None = None
    """The latest recorded time."""
    first_seen_ns: int | None = None
    last_seen_ns: int | None = None
    """By the server's clock; for an imported run, the time of the import."""
    last_step: int | None = None
    state: RunState = "ended"
    """`running`; `stalled` when its processes report but diagnosis found no progress; `silent` when they stopped
    reporting without ending; `ended` when all of them ended."""
    reward: float | None = None
    """The latest mean reward."""
    tags: list[str] = []
    notes: str = ""
    problem: str = ""
    """Why the file cannot be read: another process has it open, a newer version wrote it, or a part is damaged."""


def file_name(run_id: str) -> str:
    """Return the file name of a run id: the id itself if it is safe, otherwise a readable part and a digest.

    >>> file_name("grpo-7b"), file_name("../../etc/passwd")
    ('grpo-7b.duckdb', 'etc-passwd~3754d6cb3a38e118.duckdb')
    """
    if _PLAIN_NAME.fullmatch(run_id):
        return run_id + SUFFIX
    readable = re.sub(r"[^A-Za-z0-9]+", "-", run_id, flags=re.ASCII).strip("-")[:40] or "run"
    digest = hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    # No safe run id contains "~", so the two kinds of names never collide.
    return f"{readable}~{digest}{SUFFIX}"


def wal_of(path: Path) -> Path:
    """Return where the write-ahead log of a run file is, or would be."""
    return path.with_name(path.name + ".wal")


def measure(path: Path) -> tuple[int, float]:
    """Return the size and modification time of a run file, including its log."""
    found = path.stat()
    size, modified = found.st_size, found.st_mtime
    with suppress(FileNotFoundError):
        log = wal_of(path).stat()
        size, modified = size + log.st_size, max(modified, log.st_mtime)
    return size, modified


def make_directory(path: Path) -> None:
    """Create the directory of runs.

    Raises:
        StoreError: it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"cannot use {path.parent} as the data directory: {error.strerror}.") from error


def move_aside(path: Path, reason: str) -> Path | None:
    """Rename a damaged file; return its new path, or None if it does not exist."""
    if not path.exists():
        return None
    stamp = time.strftime("%Y%m%dT%H%M%S")
    target = path.with_name(f"{path.name}.corrupt-{stamp}")
    number = 1
    while target.exists():
        number += 1
        target = path.with_name(f"{path.name}.corrupt-{stamp}-{number}")
    path.rename(target)
    with suppress(FileNotFoundError):
        wal_of(path).rename(wal_of(target))
    logger.error("moved the run file %s aside as %s: %s", path, target.name, reason)
    return target


# Engines and exporters outlive the training: scrape targets count only if a run has no other processes.
_MEMBERS = """
    WITH members AS (SELECT *, starts_with(process_id, $target) AS is_target FROM processes),
    deciding AS (SELECT * FROM members WHERE is_target = (SELECT bool_and(is_target) FROM members))
"""
_INFO = f"""{_MEMBERS}
    SELECT (SELECT count(*) FROM members), (SELECT min(first_seen_ns) FROM members), max(last_seen_ns) FROM deciding
"""  # noqa: S608  (constants)
_UNENDED = f"""{_MEMBERS}
    SELECT max(last_seen_ns), heartbeat_s FROM deciding WHERE NOT final GROUP BY heartbeat_s
"""  # noqa: S608  (constants)


class KnownRun(msgspec.Struct, frozen=True):
    """The information in a run file; the run's state also depends on the time."""

    info: RunInfo
    silent_from_ns: int | None
    """When the run becomes silent if nothing more arrives; None if all its processes have ended."""
    is_stalled: bool = False

    def measured(self, shown: RunInfo) -> KnownRun:
        """Return the same information with another size and modification time of the file."""
        info = msgspec.structs.replace(self.info, size_bytes=shown.size_bytes, modified_s=shown.modified_s)
        return msgspec.structs.replace(self, info=info)

    def at(self, now_ns: int) -> RunInfo:
        """Return the run as of a time of the server's clock."""
        if self.silent_from_ns is None:
            return self.info
        if now_ns > self.silent_from_ns:
            return msgspec.structs.replace(self.info, state="silent")
        return msgspec.structs.replace(self.info, state="stalled" if self.is_stalled else "running")


def read_info(
    cursor: duckdb.DuckDBPyConnection, shown: RunInfo, run_id: str, earlier: KnownRun | None = None
) -> KnownRun:
    """Return `shown` completed from the file; `run_id` is for a file that no process has written to.

    With `earlier`, times, steps and reward are taken from there instead of reading all records again.
    """
    from rl_insight.store.queries.findings import is_stalled  # queries import the store, which imports this module
    from rl_insight.store.queries.run_notes import read_notes

    targets = {"target": TARGET_PROCESS_PREFIX}
    ((processes, first_seen, last_seen),) = cursor.execute(_INFO, targets).fetchall()
    unended = cursor.execute(_UNENDED, targets).fetchall()
    recorded = _recorded(cursor, shown, run_id if not processes else None) if earlier is None else earlier.info
    notes = read_notes(cursor)
    stalled = is_stalled(cursor)
    info = msgspec.structs.replace(
        recorded,
        size_bytes=shown.size_bytes,
        modified_s=shown.modified_s,
        processes=processes,
        first_seen_ns=first_seen,
        last_seen_ns=last_seen,
        tags=notes.tags,
        notes=notes.notes,
    )
    silent_from_ns = max((seen_ns + silence_ns(heartbeat_s) for seen_ns, heartbeat_s in unended), default=None)
    return KnownRun(info, silent_from_ns, stalled)


def _recorded(cursor: duckdb.DuckDBPyConnection, shown: RunInfo, run_id: str | None) -> RunInfo:
    from rl_insight.store.queries.rewards import latest_reward
    from rl_insight.store.queries.summary import summary

    found = summary(cursor)
    return msgspec.structs.replace(
        shown,
        run_id=found.run_id if run_id is None else run_id,
        project=found.project,
        experiment_name=found.experiment_name,
        started_ns=found.start_ns,
        ended_ns=found.end_ns,
        last_step=found.last_step,
        reward=latest_reward(cursor),
    )


def by_beginning(runs: Iterable[RunInfo]) -> list[RunInfo]:
    """Return runs, latest start first: that order does not change while several are being written.

    Unreadable runs come last, after the run of scraped metrics.
    """
    return sorted(
        runs,
        key=lambda info: (
            not info.problem,
            info.run_id != SCRAPED_RUN,
            info.started_ns or info.first_seen_ns or 0,
            info.modified_s,
        ),
        reverse=True,
    )
