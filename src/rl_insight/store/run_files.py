"""The files of runs: their names, their sizes, and what they say about their run."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rl_insight.store.run_store import RunStore

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
SUFFIX = ".duckdb"


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
    last_seen_ns: int | None = None
    problem: str = ""
    """Why the file cannot be read, for one that another process has open or that a newer version wrote."""


def file_name(run_id: str) -> str:
    """Return the file name for a run id: itself where it is harmless, else a readable part and a digest.

    >>> file_name("grpo-7b"), file_name("../../etc/passwd")
    ('grpo-7b.duckdb', 'etc-passwd~3754d6cb3a38e118.duckdb')
    """
    if _PLAIN_NAME.fullmatch(run_id):
        return run_id + SUFFIX
    readable = re.sub(r"[^A-Za-z0-9]+", "-", run_id, flags=re.ASCII).strip("-")[:40] or "run"
    digest = hashlib.sha256(run_id.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    # No harmless run id contains "~", so the two kinds of names never meet.
    return f"{readable}~{digest}{SUFFIX}"


def wal_of(path: Path) -> Path:
    """Return where the write-ahead log of a run file is, or would be."""
    return path.with_name(path.name + ".wal")


def measure(path: Path) -> tuple[int, float]:
    """Return the size and time of a run file together with its log."""
    found = path.stat()
    size, modified = found.st_size, found.st_mtime
    with suppress(FileNotFoundError):
        log = wal_of(path).stat()
        size, modified = size + log.st_size, max(modified, log.st_mtime)
    return size, modified


_INFO = """
    SELECT any_value(run_id), any_value(nullif(project, '')), any_value(nullif(experiment_name, '')), count(*),
        min(first_seen_ns), max(last_seen_ns)
    FROM processes
"""


def read_info(store: RunStore, shown: RunInfo, run_id: str) -> RunInfo:
    """Return `shown` with what the file says about its run; `run_id` is for a file that no process has written to."""
    with store.reader() as cursor:
        ((found, project, experiment, processes, started, last_seen),) = cursor.execute(_INFO).fetchall()
    return msgspec.structs.replace(
        shown,
        run_id=run_id if found is None else found,
        project=project or "",
        experiment_name=experiment or "",
        processes=processes,
        started_ns=started,
        last_seen_ns=last_seen,
    )
