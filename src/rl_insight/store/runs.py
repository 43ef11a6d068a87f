"""The directory of runs: one file per run, opened on demand, closed when idle, moved aside when damaged."""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from rl_insight.files import replacing
from rl_insight.store.errors import (
    NoRunError,
    RunExistsError,
    RunNotFoundError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreVersionError,
)
from rl_insight.store.run_files import (
    SUFFIX,
    KnownRun,
    RunInfo,
    by_beginning,
    file_name,
    make_directory,
    move_aside,
    read_info,
    wal_of,
)
from rl_insight.store.run_index import RunIndex
from rl_insight.store.run_store import RunStore, open_run_file
from rl_insight.waiting import wait_for
from rl_insight.words import size_text

logger = logging.getLogger(__name__)

_NO_RUN = "there is no run {!r}. `rl-insight runs list` shows the runs."
_LARGE_BYTES = 32 * 1024 * 1024
_CHEAP = 20.0
"""The information about a large open file is reused for this many times the time it took to read: at most 5% of a
core."""
_MAX_RECENT_S = 10.0


@dataclass(slots=True, eq=False)
class _Handle:
    """An open file and its number of users."""

    store: RunStore
    leases: int = 0
    used_s: float = field(default_factory=time.monotonic)


class RunDirectory:
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

    def __init__(
        self,
        data_dir: Path,
        *,
        max_open: int = 32,
        max_open_bytes: int = 2 * 1024**3,
        memory_limit: str = "512MB",
        threads: int = 2,
        min_free_bytes: int = 64 * 1024 * 1024,
    ) -> None:
        self.path = Path(data_dir) / "runs"
        self._max_open = max_open
        self._max_open_bytes = max_open_bytes
        self._memory_limit = memory_limit
        self._threads = threads
        self._min_free_bytes = min_free_bytes
        self._lock = threading.RLock()
        self._handles: OrderedDict[str, _Handle] = OrderedDict()
        self._index = RunIndex(self.path)
        self._closed = False

    def file_of(self, run_id: str) -> Path:
        """Return where a run's file is, or would be."""
        return self.path / file_name(run_id)

    @contextmanager
    def open(self, run_id: str, *, create: bool = False) -> Iterator[RunStore]:
        """Lend a run's store; it stays open while the block runs.

        A damaged file is moved aside; with `create`, a new one replaces it.

        Raises:
            RunNotFoundError: there is no such run, and `create` is false.
            StoreCorruptError: the file was damaged and has been moved aside.
        """
        handle = self._lease(run_id, create=create)
        try:
            yield handle.store
        except StoreCorruptError:
            self.set_aside(run_id, "reading or writing it failed")
            raise
        finally:
            self._release(run_id, handle)

    def _lease(self, run_id: str, *, create: bool) -> _Handle:
        with self._lock:
            if self._closed:
                raise StoreError("the directory of runs is closed.")
            handle = self._handles.get(run_id)
            if handle is not None and handle.store.broken and handle.leases == 0:
                self._drop(run_id)
                handle = None
            if handle is None:
                handle = self._open_file(run_id, create=create)
                self._handles[run_id] = handle
            handle.leases += 1
            self._handles.move_to_end(run_id)
            self._close_surplus()
            return handle

    def _open_file(self, run_id: str, *, create: bool) -> _Handle:
        path = self.file_of(run_id)
        if not create and not path.exists():
            raise RunNotFoundError(_NO_RUN.format(run_id))
        if create:
            make_directory(self.path)
        try:
            return _Handle(self._store(path, create=create))
        except StoreCorruptError as error:
            self.set_aside(run_id, str(error))
            if not create:
                raise
        return _Handle(self._store(path, create=True))

    def _store(self, path: Path, *, create: bool = False) -> RunStore:
        return RunStore(
            path,
            create=create,
            memory_limit=self._memory_limit,
            threads=self._threads,
            min_free_bytes=self._min_free_bytes,
        )

    def _release(self, run_id: str, handle: _Handle) -> None:
        with self._lock:
            handle.leases -= 1
            handle.used_s = time.monotonic()
            if handle.leases == 0 and self._handles.get(run_id) is not handle:
                self._close_file(run_id, handle.store)  # it was dropped while in use
            self._close_surplus()

    def _close_surplus(self) -> None:
        for run_id in [run_id for run_id, handle in self._handles.items() if handle.leases == 0]:
            if len(self._handles) <= self._max_open:
                return
            self._drop(run_id)

    def _drop(self, run_id: str) -> None:
        handle = self._handles.pop(run_id, None)
        if handle is not None and handle.leases == 0:
            self._close_file(run_id, handle.store)

    def _close_file(self, run_id: str, store: RunStore) -> None:
        """Close a file, and index it first: the list of runs would have to open it again."""
        path = self.file_of(run_id)
        shown, known = self._index.look(path)
        if shown is not None and known is None and not store.broken:
            with suppress(StoreError):
                known = read_info(store, shown, run_id)
        store.close()
        shown, _ = self._index.look(path)  # closing writes what is still in the log
        if shown is not None and known is not None:
            self._index.put(shown, known.measured(shown))

    def close_idle(self, idle_s: float = 300.0) -> int:
        """Close files that have been idle for `idle_s`; return how many."""
        with self._lock:
            last = time.monotonic() - idle_s
            idle = [run_id for run_id, handle in self._handles.items() if handle.leases == 0 and handle.used_s <= last]
            for run_id in idle:
                self._drop(run_id)
            return len(idle)

    def trim(self) -> int:
        """Close the longest idle files until the others hold at most `max_open_bytes`; return how many."""
        with self._lock:
            handles = dict(self._handles)
        held = {run_id: handle.store.memory_bytes() for run_id, handle in handles.items()}
        surplus = sum(held.values()) - self._max_open_bytes
        closed = 0
        for run_id, handle in handles.items():
            with self._lock:
                if surplus > 0 and handle.leases == 0 and self._handles.get(run_id) is handle:
                    self._drop(run_id)
                    surplus -= held[run_id]
                    closed += 1
        return closed

    def open_runs(self) -> list[str]:
        """Return the runs whose files are open, the longest idle first."""
        with self._lock:
            return list(self._handles)

    def set_aside(self, run_id: str, reason: str) -> Path | None:
        """Move a damaged file aside; return its new path, or None if it does not exist."""
        with self._lock:
            path = self.file_of(run_id)
            handle = self._handles.pop(run_id, None)
            if handle is not None:
                handle.store.broken = True
                if handle.leases <= 1:
                    handle.store.close()
            return self._move_aside(path, reason)

    def _move_aside(self, path: Path, reason: str) -> Path | None:
        with self._lock:
            self._index.drop(path.name)
        return move_aside(path, reason)

    def list_runs(self) -> list[RunInfo]:
        """Return all runs, latest start first; damaged files are moved aside."""
        found = [info for path in self._files() if (info := self._info(path)) is not None]
        with self._lock:
            self._index.save({info.file for info in found})
        return by_beginning(found)

    def _files(self) -> list[Path]:
        return sorted(self.path.glob(f"*{SUFFIX}"))

    def get(self, run_id: str) -> RunInfo:
        """Return one run.

        Raises:
            RunNotFoundError: there is no such run.
        """
        info = self._info(self.file_of(run_id))
        if info is None:
            raise RunNotFoundError(_NO_RUN.format(run_id))
        return info

    def _info(self, path: Path) -> RunInfo | None:
        with self._lock:
            shown, known = self._index.look(path)
        if shown is None or known is not None:
            return known.at(time.time_ns()) if known is not None else None
        try:
            return self._describe(path, shown).at(time.time_ns())
        except (StoreCorruptError, RunNotFoundError) as error:
            self._move_aside(path, str(error))  # does nothing if the run was deleted in between
            return None
        except (StoreBusyError, StoreVersionError) as error:
            return msgspec.structs.replace(shown, problem=str(error))

    def _describe(self, path: Path, shown: RunInfo) -> KnownRun:
        """Read a file's information; for a large open file, reuse recent counts."""
        with self._lock:
            run_id = next((one for one in self._handles if file_name(one) == path.name), None)
            if run_id is None or self._handles[run_id].store.broken:
                with closing(open_run_file(path)) as store:
                    described = read_info(store, shown, shown.run_id)
                self._index.put(shown, described)
                return described
            handle = self._handles[run_id]
            handle.leases += 1
            earlier = self._index.recent(path.name)
        began = time.monotonic()
        try:
            described = read_info(handle.store, shown, run_id, earlier)
        finally:
            self._release(run_id, handle)
        if earlier is None:
            took_s = time.monotonic() - began if shown.size_bytes > _LARGE_BYTES else 0.0
            recent_s = min(_CHEAP * took_s, _MAX_RECENT_S)
            with self._lock:
                self._index.put(shown, described, recent_s=recent_s, is_open=True)
        return described

    def delete(self, run_id: str, wait_s: float = 0.0) -> None:
        """Delete a run's file once it is not in use.

        Raises:
            RunNotFoundError: there is no such run.
            StoreBusyError: the run stayed in use for `wait_s`.
        """
        if not wait_for(lambda: self._delete_if_free(run_id), wait_s):
            raise StoreBusyError(f"cannot delete run {run_id!r}: it is in use. Try again in a few seconds.")

    def _delete_if_free(self, run_id: str) -> bool:
        with self._lock:
            path = self.file_of(run_id)
            if not path.exists():
                raise RunNotFoundError(_NO_RUN.format(run_id))
            handle = self._handles.get(run_id)
            if handle is not None and handle.leases:
                return False
            self._drop(run_id)
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
            with self._store(partial) as store:
                shown = RunInfo(run_id="", file=source.name, size_bytes=0, modified_s=0.0)
                run_id = read_info(store, shown, "").info.run_id
            return self._adopt(partial, source, run_id)
        except StoreCorruptError as error:
            raise StoreCorruptError(str(error).replace(str(partial), str(source))) from error
        finally:
            partial.unlink(missing_ok=True)
            wal_of(partial).unlink(missing_ok=True)

    def _adopt(self, partial: Path, source: Path, run_id: str) -> RunInfo:
        if not run_id:
            raise NoRunError(f"cannot import {source}: it contains no run.")
        with self._lock:
            target = self.file_of(run_id)
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
        with self._lock:
            if run_id in self._handles:
                return False
            with suppress(StoreError):
                self.delete(run_id)
                return True
            return False

    def close(self) -> None:
        """Close all files; idempotent. Files in use are closed when they are released."""
        with self._lock:
            self._closed = True
            for run_id in list(self._handles):
                self._drop(run_id)
            self._index.save({path.name for path in self._files()})
