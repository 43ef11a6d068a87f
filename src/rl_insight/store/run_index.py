"""A cache of the list of runs, stored next to the run files: opening a file takes 60 ms."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import msgspec

from rl_insight._version import __version__
from rl_insight.files import replace_file
from rl_insight.store.run_files import SUFFIX, KnownRun, RunInfo, measure

_FILE = ".index.json"


class _IndexEntry(msgspec.Struct, array_like=True):
    stamp: tuple[int, int]
    """The size and modification time of the file; any change invalidates the entry."""
    run: KnownRun


class _IndexFile(msgspec.Struct):
    version: str
    entries: dict[str, _IndexEntry]


class RunIndex:
    """Run files by name, as last read; not thread-safe.

    Several processes may share a directory: the last save wins, and missing entries are read again.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._entries = _load(self._path)
        self._expires_s: dict[str, float] = {}
        """When an entry of a changed file becomes too old, by the monotonic clock."""
        self._is_saved = True

    def look(self, path: Path) -> tuple[RunInfo | None, KnownRun | None]:
        """Return what is known without opening a file, and its entry if the file has not changed.

        Both are None for a file that does not exist.
        """
        try:
            size, modified = measure(path)
        except FileNotFoundError:
            return None, None
        entry = self._entries.get(path.name)
        run_id = path.name.removesuffix(SUFFIX) if entry is None else entry.run.info.run_id
        shown = RunInfo(run_id=run_id, file=path.name, size_bytes=size, modified_s=modified)
        return shown, entry.run if entry is not None and entry.stamp == _stamp(shown) else None

    def recent(self, name: str) -> KnownRun | None:
        """Return the entry of a file if it is fresh enough, even if the file has changed."""
        return self._entries[name].run if time.monotonic() < self._expires_s.get(name, 0.0) else None

    def put(self, shown: RunInfo, run: KnownRun, *, recent_s: float = 0.0, is_open: bool = False) -> None:
        """Store an entry.

        Args:
            shown: the file as of the start of the read.
            run: what was read.
            recent_s: how long the entry can be used even if the file changes.
            is_open: whether this process is writing to the file, which makes the entry not worth saving.
        """
        self._entries[shown.file] = _IndexEntry(_stamp(shown), run)
        self._expires_s[shown.file] = time.monotonic() + recent_s
        self._is_saved = self._is_saved and is_open

    def drop(self, name: str) -> None:
        """Remove the entry of a file."""
        self._entries.pop(name, None)
        self._expires_s.pop(name, None)

    def changed(self, names: set[str]) -> bytes | None:
        """Return the entries of these files for `write`, and drop the others; None if they are saved already."""
        if self._is_saved:
            return None
        self._is_saved = True
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}
        return msgspec.json.encode(_IndexFile(__version__, self._entries))

    def write(self, entries: bytes) -> None:
        """Save entries; without write permission they stay in memory. Needs no lock."""
        with suppress(OSError):
            replace_file(self._path, entries)


def _stamp(shown: RunInfo) -> tuple[int, int]:
    return shown.size_bytes, int(shown.modified_s * 1000)


def _load(path: Path) -> dict[str, _IndexEntry]:
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_IndexFile)
    except (OSError, msgspec.DecodeError):
        return {}
    return found.entries if found.version == __version__ else {}
