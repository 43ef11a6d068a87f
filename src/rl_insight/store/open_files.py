"""Run files in use: opened on demand, closed when idle, moved aside when damaged."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import duckdb

from rl_insight.store.errors import RunNotFoundError, StoreCorruptError, StoreError
from rl_insight.store.run_files import SUFFIX, file_name, make_directory, move_aside, read_info
from rl_insight.store.run_index import RunIndex
from rl_insight.store.run_store import RunStore
from rl_insight.store.turns import FileTurns, Turn

NO_RUN = "there is no run {!r}. `rl-insight runs list` shows the runs."
_CLOSED = "the directory of runs is closed."


@dataclass(slots=True, eq=False)
class Handle:
    """An open file and its number of users."""

    store: RunStore
    leases: int = 0
    used_s: float = field(default_factory=time.monotonic)


class OpenFiles:
    """The run files of a directory; `RunDirectory` documents the arguments."""

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
        self._turns = FileTurns(self._lock)
        """Files are opened, described and closed without the lock: no file delays the use of others."""
        self._handles: OrderedDict[str, Handle] = OrderedDict()
        """Open files by run, the longest idle first."""
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
            self._set_aside(run_id, handle, "reading or writing it failed")
            raise
        finally:
            self._release(run_id, handle)

    def _lease(self, run_id: str, *, create: bool) -> Handle:
        with self._lock:
            handle = self._lent(run_id)
        if handle is not None:
            return handle
        with self._turns.turn(file_name(run_id), is_urgent=True):
            with self._lock:
                handle = self._lent(run_id)  # another thread may have opened it in the meantime
                broken = self._handles.pop(run_id, None) if handle is None else None
            if broken is not None:
                broken.store.close()
            if handle is None:
                handle = self._added(run_id, self._open_file(run_id, create=create))
        self._close_surplus()
        return handle

    def _lent(self, run_id: str) -> Handle | None:
        """Return an open file for one more user; needs the lock."""
        if self._closed:
            raise StoreError(_CLOSED)
        handle = self._handles.get(run_id)
        if handle is None or (handle.store.broken and handle.leases == 0):
            return None
        handle.leases += 1
        self._handles.move_to_end(run_id)
        return handle

    def _added(self, run_id: str, handle: Handle) -> Handle:
        """Return a file that was just opened, for its first user."""
        with self._lock:
            if not self._closed:
                self._handles[run_id] = handle
                handle.leases = 1
                return handle
        handle.store.close()
        raise StoreError(_CLOSED)

    def _open_file(self, run_id: str, *, create: bool) -> Handle:
        path = self.file_of(run_id)
        if not create and not path.exists():
            raise RunNotFoundError(NO_RUN.format(run_id))
        if create:
            make_directory(self.path)
        try:
            return Handle(self._store(path, create=create))
        except StoreCorruptError as error:
            self._move_aside(path, str(error))
            if not create:
                raise
        return Handle(self._store(path, create=True))

    def _store(self, path: Path, *, create: bool = False) -> RunStore:
        return RunStore(
            path,
            create=create,
            memory_limit=self._memory_limit,
            threads=self._threads,
            min_free_bytes=self._min_free_bytes,
        )

    def _release(self, run_id: str, handle: Handle) -> None:
        with self._lock:
            handle.leases -= 1
            handle.used_s = time.monotonic()
            was_dropped = handle.leases == 0 and self._handles.get(run_id) is not handle
        if was_dropped:
            handle.store.close()
        self._close_surplus()

    def _close_surplus(self) -> None:
        with self._lock:
            surplus = len(self._handles) - self._max_open
            idle = [run_id for run_id, handle in self._handles.items() if handle.leases == 0] if surplus > 0 else []
        for run_id in idle[: max(0, surplus)]:
            self._close_if_idle(run_id)

    def _close_if_idle(self, run_id: str) -> bool:
        """Close a file unless it is in use; return whether it was open and idle."""
        with ExitStack() as stack:
            with self._lock:
                handle = self._handles.get(run_id)
                if handle is None or handle.leases or not self._turns.is_free(file_name(run_id)):
                    return False
                turn = stack.enter_context(self._turns.turn(file_name(run_id)))
                del self._handles[run_id]
            self._close_file(run_id, handle.store, turn)
        return True

    def _close_file(self, run_id: str, store: RunStore, turn: Turn) -> None:
        """Close a file, and index it first unless it is needed again: the list of runs would have to open it."""
        path = self.file_of(run_id)
        with self._lock:
            shown, known = self._index.look(path)
        if shown is not None and known is None and not store.broken:
            with suppress(StoreError, duckdb.InterruptException), store.reader() as cursor, turn.interruptible(cursor):
                known = read_info(cursor, shown, run_id)
        store.close()
        with self._lock:
            shown, _ = self._index.look(path)  # closing writes what is still in the log
            if shown is not None and known is not None:
                self._index.put(shown, known.measured(shown))

    def close_idle(self, idle_s: float = 300.0) -> int:
        """Close files that have been idle for `idle_s`; return how many."""
        last = time.monotonic() - idle_s
        with self._lock:
            idle = [run_id for run_id, handle in self._handles.items() if handle.used_s <= last]
        return sum([self._close_if_idle(run_id) for run_id in idle])

    def trim(self) -> int:
        """Close the longest idle files until the others hold at most `max_open_bytes`; return how many."""
        with self._lock:
            handles = dict(self._handles)
        held = {run_id: handle.store.memory_bytes() for run_id, handle in handles.items()}
        surplus = sum(held.values()) - self._max_open_bytes
        closed = 0
        for run_id in handles:
            if surplus > 0 and self._close_if_idle(run_id):
                surplus -= held[run_id]
                closed += 1
        return closed

    def open_runs(self) -> list[str]:
        """Return the runs whose files are open, the longest idle first."""
        with self._lock:
            return list(self._handles)

    def _set_aside(self, run_id: str, handle: Handle, reason: str) -> None:
        """Move a damaged file aside that the caller has leased, unless another of its users has done so."""
        with self._lock:
            if self._handles.get(run_id) is not handle:
                return
            del self._handles[run_id]
            handle.store.broken = True
            if handle.leases == 1:
                handle.store.close()
            self._move_aside(self.file_of(run_id), reason)

    def _move_aside(self, path: Path, reason: str) -> None:
        with self._lock:
            self._index.drop(path.name)
            move_aside(path, reason)

    def _files(self) -> list[Path]:
        return sorted(self.path.glob(f"*{SUFFIX}"))

    def _save_index(self, names: set[str]) -> None:
        with self._lock:
            changed = self._index.changed(names)
        if changed is not None:
            self._index.write(changed)

    def close(self) -> None:
        """Close all files; idempotent. Files in use are closed when they are released."""
        with self._lock:
            self._closed = True
            self._turns.wait_for_all()
            idle = {run_id: handle.store for run_id, handle in self._handles.items() if handle.leases == 0}
            self._handles.clear()
        for run_id, store in idle.items():
            with self._turns.turn(file_name(run_id)) as turn:
                self._close_file(run_id, store, turn)
        self._save_index({path.name for path in self._files()})
