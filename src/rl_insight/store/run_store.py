"""One run's file: writes batches exactly once, and lends cursors to readers."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import duckdb

from rl_insight.intake import Intake
from rl_insight.schema import Batch
from rl_insight.schema.names import original_of
from rl_insight.store.catalog import Catalog
from rl_insight.store.connections import RunFile, safe_settings
from rl_insight.store.errors import StoreError, StoreFullError, StoreVersionError
from rl_insight.store.file_errors import check_exists, translated
from rl_insight.store.frame import Frame
from rl_insight.store.gathered import Part, gather, stored_frame, texts_of
from rl_insight.store.rollup import roll_up, rolled_up_rows
from rl_insight.store.run_files import measure, wal_of
from rl_insight.store.sessions import SessionWriter
from rl_insight.store.span_rows import SpanWriter
from rl_insight.store.tables import ROLLUP_ROWS, migrate
from rl_insight.words import size_text

logger = logging.getLogger(__name__)

_DATA_TABLES = {
    "events": "event_data",
    "logs": "log_data",
    "samples": "sample_data",
    "histograms": "histogram_data",
}
_WIDE_TABLES = frozenset({"event_data", "log_data"})
_MERGED_FILE_BYTES = 16 * 1024 * 1024
_MERGED_ROW_BYTES = 512
"""A checkpoint merges neighboring row groups up to 122,880 rows, which takes 10 s per GB of text. Above the first of
these sizes it does so only while rows take less than the second on disk."""

_QUIET_NS = 1_000_000_000

_COUNT_ROWS = """
    SELECT (SELECT count(*) FROM span_data),
        (SELECT count(*) FROM event_data) + (SELECT count(*) FROM log_data) + (SELECT count(*) FROM sessions)
"""


class RunStore(RunFile):
    """A run file, open for writing and reading; only one process at a time can open it.

    >>> with RunStore(Path("run.duckdb"), create=True) as store:  # doctest: +SKIP
    ...     store.commit([batch])
    ...     with store.reader() as cursor:
    ...         cursor.execute("SELECT count(*) FROM spans").fetchall()

    Args:
        path: the file.
        create: create a missing file; by default that is an error, so that a mistyped path creates nothing.
        memory_limit: DuckDB's memory limit for this file.
        threads: how many threads one query may use.
        checkpoint_bytes: the size limit of the write-ahead log; a checkpoint pauses commits in proportion to it.
        min_free_bytes: commits are refused with `StoreFullError` when the disk has less free space than this.

    Raises:
        RunNotFoundError: there is no such file, and `create` is false.
        StoreCorruptError: the file is damaged, truncated, or not a run file.
        StoreBusyError: another process has it open.
        StoreVersionError: it was written by a newer version.
    """

    def __init__(
        self,
        path: Path,
        *,
        create: bool = False,
        memory_limit: str = "512MB",
        threads: int = 2,
        checkpoint_bytes: int = 32 * 1024 * 1024,
        min_free_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.path = Path(path)
        self.broken = False
        """True when DuckDB refuses the file until it is reopened, for example after the disk was full."""
        self._min_free_bytes = min_free_bytes
        self._write_lock = threading.Lock()
        self._closed = False
        self._merges = True
        settings = safe_settings(memory_limit=memory_limit, threads=threads)
        settings["checkpoint_threshold"] = f"{checkpoint_bytes}B"
        if not create:
            check_exists(self.path)
        self._open(settings, read_only=False)

    def _prepare(self) -> None:
        migrate(self._connection)
        self._load()

    def _load(self) -> None:
        self._catalog = Catalog.load(self._connection)
        self._rolled_up = rolled_up_rows(self._connection)
        ((self._span_rows, other_rows),) = self._connection.execute(_COUNT_ROWS).fetchall()
        self._wide_rows = self._span_rows + other_rows

    def commit(
        self,
        batches: Sequence[Batch],
        *,
        received_ns: Sequence[int] | None = None,
        settle: bool = True,
    ) -> list[bool]:
        """Write batches in one transaction; once it returns, they survive a crash of this process.

        Args:
            batches: in any order, from any processes, already checked by `intake.Admission`.
            received_ns: when each arrived; default now.
            settle: False defers updating the ledger and the last-seen times that readers see to a later commit. The
                batches are durable either way.

        Returns:
            For each batch, whether it was new; False for a duplicate.

        Raises:
            StoreError: nothing was written.
        """
        now = time.time_ns()
        arrivals = [now] * len(batches) if received_ns is None else received_ns
        with self.writing() as connection:
            if self._span_rows - self._rolled_up >= ROLLUP_ROWS:
                # Before this commit's rows, which get their row ids only when it completes.
                self._rolled_up = roll_up(connection, self._rolled_up, self._span_rows)
            new = self._write(connection, batches, arrivals)
            self._catalog.save(connection, settle=settle)
        return new

    @property
    def is_settled(self) -> bool:
        """True when readers see all batches; call it only on the committing thread."""
        return not self._catalog.is_behind

    def intake(self, process_id: str) -> Intake:
        """Return the intake of a process, or of the original of a copy; call it only on the committing thread."""
        known = self._catalog.processes
        return known[process_id if process_id in known else original_of(process_id) or process_id].intake

    @contextmanager
    def writing(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Hold the write lock and a transaction; an error inside rolls back both the file and the catalog."""
        with self._write_lock:
            self._check_usable()
            connection = self._connection
            try:
                with translated(self.path):
                    connection.execute("BEGIN")
                    yield connection
                    self._limit_merging()
                    connection.execute("COMMIT")
            except BaseException as error:
                self._undo(error)
                raise
            self._catalog.saved()

    def _limit_merging(self) -> None:
        """Keep checkpoints short: long text stays in the row groups it was first written to."""
        size = self.path.stat().st_size
        merges = size <= _MERGED_FILE_BYTES or size <= _MERGED_ROW_BYTES * self._wide_rows
        if merges != self._merges:
            self._connection.execute(f"SET max_vacuum_tasks = {100 if merges else 0}")
            self._merges = merges

    def _check_usable(self) -> None:
        if self._closed:
            raise StoreError(f"{self.path} is closed.")
        if self.broken:
            raise StoreError(f"{self.path} failed before: reopen it.")
        if shutil.disk_usage(self.path.parent).free < self._min_free_bytes:
            raise StoreFullError(
                f"cannot write to {self.path}: less than {self._min_free_bytes >> 20} MiB are free on the disk. "
                "Free some space; writing resumes automatically."
            )

    def _undo(self, error: BaseException) -> None:
        with suppress(duckdb.Error):
            self._connection.execute("ROLLBACK")
        try:
            self._load()
        except duckdb.Error:
            self.broken = True
            logger.warning("the run file %s has to be reopened: %s", self.path, error)

    def _write(
        self, connection: duckdb.DuckDBPyConnection, batches: Sequence[Batch], arrivals: Sequence[int]
    ) -> list[bool]:
        fresh: list[Part] = []
        sessions = SessionWriter()
        new = []
        for batch, arrived in zip(batches, arrivals, strict=True):
            if not batch.sent_ns and self._catalog.has_original(batch.process.process_id):
                new.append(False)
                continue
            state = self._catalog.process_of(batch, arrived)
            had_fallen_silent = state.intake.last_seen_ns > 0 and state.intake.liveness(arrived) == "silent"
            is_new = self._catalog.take(batch, state, arrived)
            new.append(is_new)
            if not is_new:
                continue
            if had_fallen_silent:
                sessions.reopen(batch.process.process_id)
            fresh.append((batch, state))
            sessions.gather(batch, state)
        self._write_rows(connection, fresh)
        sessions.write(connection)
        return new

    def _write_rows(self, connection: duckdb.DuckDBPyConnection, fresh: Sequence[Part]) -> None:
        spans = SpanWriter()
        frames: dict[str, list[Frame]] = {}
        for gathered in gather(fresh):
            texts = texts_of(gathered)
            if gathered.has("spans"):
                spans.add(gathered, gathered.stored("spans", self._catalog), texts)
            for name, stored in _DATA_TABLES.items():
                if gathered.has(name):
                    rows = gathered.stored(name, self._catalog)
                    frames.setdefault(stored, []).append(stored_frame(gathered, rows, texts))
        self._span_rows += (ended := spans.write(connection, self._catalog.inserts))
        self._wide_rows += ended
        for stored, parts in frames.items():
            self._wide_rows += sum(map(len, parts)) if stored in _WIDE_TABLES else 0
            self._catalog.inserts.insert(connection, stored, parts)

    def memory_bytes(self) -> int:
        """Return DuckDB's memory use for this file, 0 once it is closed; takes about a millisecond."""
        try:
            with self.reader() as cursor:
                ((held,),) = cursor.execute("SELECT sum(memory_usage_bytes)::BIGINT FROM duckdb_memory()").fetchall()
        except (StoreError, duckdb.Error):
            return 0
        return int(held or 0)

    def snapshot(self, target: Path) -> None:
        """Copy the file and its log as of one commit.

        Commits go to the log, and wait only while that is copied. If the file itself is written meanwhile, by a
        checkpoint or a large commit, it is copied again, and commits wait for that too.

        Opening the copy replays the log.

        Raises:
            StoreFullError: there is not enough disk space for the copy.
        """
        with self._write_lock:
            self._check_usable()
            size, _ = measure(self.path)
            if shutil.disk_usage(target.parent).free - size < self._min_free_bytes:
                raise StoreFullError(f"cannot copy {self.path}: {target.parent} has no space for {size_text(size)}.")
            modified_ns = self.path.stat().st_mtime_ns
        # Two writes within a tick of the file system's clock have the same time, so a file that was written just now
        # could change unnoticed.
        is_quiet = time.time_ns() - modified_ns > _QUIET_NS
        if is_quiet:
            shutil.copyfile(self.path, target)
        with self._write_lock:
            self._check_usable()
            if not is_quiet or self.path.stat().st_mtime_ns != modified_ns:
                shutil.copyfile(self.path, target)
            with suppress(FileNotFoundError):
                shutil.copyfile(wal_of(self.path), wal_of(target))

    def copy_to(self, target: Path) -> None:
        """Write a consistent copy of the file while the run continues."""
        self.snapshot(target)
        # Opening the copy replays its log, closing merges the log into the file.
        RunStore(target, min_free_bytes=0).close()

    def close(self) -> None:
        """Merge the log into the file and close it; idempotent."""
        with self._write_lock:
            if self._closed:
                return
            self._closed = True
            with suppress(duckdb.Error):
                self._settle()
            with suppress(duckdb.Error):
                self._connection.close()

    def _settle(self) -> None:
        """Update the ledger for readers; if that fails, the next open recovers it from `taken`."""
        if self._catalog.is_behind and not self.broken:
            self._connection.execute("BEGIN")
            self._catalog.save(self._connection)
            self._connection.execute("COMMIT")

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def open_run_file(path: Path) -> RunFile:
    """Open a run file for reading only; one of an older version is upgraded first.

    Raises:
        RunNotFoundError: there is no such file.
        StoreError: it cannot be opened; the message says why.
    """
    try:
        return RunFile(path)
    except StoreVersionError:
        return RunStore(path)  # refuses a file of a newer version
