"""The directory of runs, one file per run: listed, deleted, copied, and kept within limits."""

from __future__ import annotations

import logging
import shutil
import time
from contextlib import closing, suppress
from pathlib import Path

import duckdb
import msgspec

from rl_insight.files import replacing
from rl_insight.store.errors import (
    NoRunError,
    RunExistsError,
    RunNotFoundError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
)
from rl_insight.store.open_files import NO_RUN, OpenFiles
from rl_insight.store.run_files import (
    KnownRun,
    RunInfo,
    by_beginning,
    file_name,
    make_directory,
    read_info,
    wal_of,
)
from rl_insight.store.run_store import open_run_file
from rl_insight.waiting import wait_for
from rl_insight.words import size_text

logger = logging.getLogger(__name__)

_LARGE_BYTES = 32 * 1024 * 1024
_CHEAP = 20.0
"""The information about a large open file is reused for this many times the time it took to read: at most 5% of a
core."""
_MAX_RECENT_S = 10.0


class RunDirectory(OpenFiles):
    """All runs under ``<data_dir>/runs``.

    >>> directory = RunDirectory(Path("~/.rl-insight").expanduser())  # doctest: +SKIP
    >>> with directory.open("grpo-7b") as store:  # doctest: +SKIP
    ...     store.commit([batch])

    Args:
        data_dir: created with the first run.
        max_open: how many files stay open; the longest idle is closed first. Each takes about 6 MiB and two threads.
        max_open_bytes: the total memory limit of open databases, see `trim`.
        memory_limit: for each open file.
        threads: how many threads one query of a file may use.
        min_free_bytes: writing pauses when the disk has less free space than this.
    """

    def list_runs(self) -> list[RunInfo]:
        """Return all runs, latest start first; damaged files are moved aside."""
        found = [info for path in self._files() if (info := self._info(path)) is not None]
        self._save_index({info.file for info in found})
        return by_beginning(found)

    def get(self, run_id: str) -> RunInfo:
        """Return one run.

        Raises:
            RunNotFoundError: there is no such run.
        """
        info = self._info(self.file_of(run_id))
        if info is None:
            raise RunNotFoundError(NO_RUN.format(run_id))
        return info

    def _info(self, path: Path) -> RunInfo | None:
        """Return the information about a file; None for one that does not exist or is damaged."""
        while True:
            with self._lock:
                shown, known = self._index.look(path)
            if shown is not None and known is None:
                try:
                    known = self._describe_open(shown) or self._describe_closed(path, shown)
                except (StoreCorruptError, RunNotFoundError):
                    return None  # it was moved aside, or deleted in the meantime
                except (StoreError, duckdb.Error) as error:  # one unreadable file must not hide the other runs
                    return msgspec.structs.replace(shown, problem=str(error))
                if known is None:
                    continue  # another thread has opened it
            return known.at(time.time_ns()) if known is not None else None

    def _run_of(self, file: str) -> str | None:
        """Return the run of a file that is open and can be read; needs the lock."""
        opened = (run_id for run_id, handle in self._handles.items() if not handle.store.broken)
        return next((run_id for run_id in opened if file_name(run_id) == file), None)

    def _describe_open(self, shown: RunInfo) -> KnownRun | None:
        """Read the information about an open file; of a large one, reuse recent counts. None if it is not open."""
        with self._lock:
            run_id = self._run_of(shown.file)
            handle = None if run_id is None else self._lent(run_id)
            earlier = self._index.recent(shown.file)
        if run_id is None or handle is None:
            return None
        began = time.monotonic()
        try:
            with handle.store.reader() as cursor:
                described = read_info(cursor, shown, run_id, earlier)
        except StoreCorruptError as error:
            self._set_aside(run_id, handle, str(error))
            raise
        finally:
            self._release(run_id, handle)
        if earlier is None:
            took_s = time.monotonic() - began if shown.size_bytes > _LARGE_BYTES else 0.0
            recent_s = min(_CHEAP * took_s, _MAX_RECENT_S)
            with self._lock:
                self._index.put(shown, described, recent_s=recent_s, is_open=True)
        return described

    def _describe_closed(self, path: Path, shown: RunInfo) -> KnownRun | None:
        """Read the information about a file that is not open; None if another thread opened it or needs it now."""
        with self._turns.turn(path.name) as turn:
            with self._lock:
                if self._run_of(path.name) is not None:
                    return None
            try:
                with closing(open_run_file(path)) as store, store.reader() as cursor, turn.interruptible(cursor):
                    described = read_info(cursor, shown, shown.run_id)
            except duckdb.InterruptException:
                return None
            except StoreCorruptError as error:
                self._move_aside(path, str(error))
                raise
            with self._lock:
                self._index.put(shown, described)
            return described

    def delete(self, run_id: str, wait_s: float = 0.0) -> None:
        """Delete a run's file once it is not in use.

        Raises:
            RunNotFoundError: there is no such run.
            StoreBusyError: the run stayed in use for `wait_s`.
        """
        if not wait_for(lambda: self._delete_if_free(run_id), wait_s):
            raise StoreBusyError(f"cannot delete run {run_id!r}: it is in use. Try again in a few seconds.")

    def _delete_if_free(self, run_id: str, *, keeps_open: bool = False) -> bool:
        """Delete a run's file and return True, unless it is in use or, with `keeps_open`, open."""
        path = self.file_of(run_id)
        with self._turns.turn(path.name, is_urgent=True):
            with self._lock:
                if not path.exists():
                    raise RunNotFoundError(NO_RUN.format(run_id))
                handle = self._handles.get(run_id)
                if handle is not None and (handle.leases or keeps_open):
                    return False
                self._handles.pop(run_id, None)
            if handle is not None:
                handle.store.close()
            with self._lock:
                self._index.drop(path.name)
            path.unlink()
            wal_of(path).unlink(missing_ok=True)
            return True

    def export(self, run_id: str, target: Path) -> Path:
        """Write a consistent copy of a run's file, while the run is live.

        Raises:
            StoreError: the target already exists or cannot be written.
        """
        if target.exists():
            raise StoreError(f"cannot export to {target}: it already exists. Choose another name.")
        try:
            with replacing(target) as partial, self.open(run_id) as store:
                try:
                    store.copy_to(partial)
                finally:
                    wal_of(partial).unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot export to {target}: {error.strerror}.") from error
        return target

    def import_file(self, source: Path) -> RunInfo:
        """Copy a run file into the directory, under its run's name.

        Raises:
            StoreCorruptError: the file is damaged or not a run file.
            NoRunError: it contains no run yet.
            RunExistsError: a run with that name already exists.
        """
        if not source.is_file():
            raise StoreError(f"cannot import {source}: there is no such file.")
        make_directory(self.path)
        partial = self.path / f".import-{time.time_ns()}"
        try:
            shutil.copyfile(source, partial)
            with suppress(FileNotFoundError):
                shutil.copyfile(wal_of(source), wal_of(partial))
            with self._store(partial) as store, store.reader() as cursor:
                shown = RunInfo(run_id="", file=source.name, size_bytes=0, modified_s=0.0)
                run_id = read_info(cursor, shown, "").info.run_id
            return self._adopt(partial, source, run_id)
        except StoreCorruptError as error:
            raise StoreCorruptError(str(error).replace(str(partial), str(source))) from error
        finally:
            partial.unlink(missing_ok=True)
            wal_of(partial).unlink(missing_ok=True)

    def _adopt(self, partial: Path, source: Path, run_id: str) -> RunInfo:
        if not run_id:
            raise NoRunError(f"cannot import {source}: it contains no run.")
        target = self.file_of(run_id)
        with self._turns.turn(target.name):
            if target.exists():
                raise RunExistsError(f"cannot import {source}: run {run_id!r} already exists. Delete it first.")
            partial.rename(target)
        return self.get(run_id)

    def apply_retention(
        self,
        *,
        max_age_s: float | None = None,
        max_total_bytes: int | None = None,
        keep_s: float = 0.0,
        now_s: float | None = None,
    ) -> list[str]:
        """Delete runs that are too old, then the oldest until the rest fits; never open ones.

        Runs written in the last `keep_s` seconds are kept, too: if more runs are being written than files may be open,
        some of their files are closed between commits.

        Returns:
            The ids of the deleted runs.
        """
        now = time.time() if now_s is None else now_s
        runs = sorted(self.list_runs(), key=lambda info: info.modified_s)
        total = sum(info.size_bytes for info in runs)
        deleted = []
        for info in runs:
            if now - info.modified_s < keep_s:
                break  # and so were all later ones
            too_old = max_age_s is not None and now - info.modified_s > max_age_s
            too_much = max_total_bytes is not None and total > max_total_bytes
            if not (too_old or too_much) or info.problem or not self._delete_unused(info.run_id):
                continue
            total -= info.size_bytes
            deleted.append(info.run_id)
            reason = "age" if too_old else "size"
            logger.info("deleted run %s (%s): %s", info.run_id, size_text(info.size_bytes), reason)
        return deleted

    def _delete_unused(self, run_id: str) -> bool:
        try:
            return self._delete_if_free(run_id, keeps_open=True)
        except RunNotFoundError:
            return False
