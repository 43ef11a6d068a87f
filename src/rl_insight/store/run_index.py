"""What the files of a directory say about their runs, kept beside them: opening a file to ask takes 60 ms."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from rl_insight._version import __version__
from rl_insight.store.run_files import SUFFIX, KnownRun, RunInfo, measure

_FILE = ".index.json"


class _Entry(msgspec.Struct, array_like=True):
    stamp: tuple[int, int]
    """The size and time of the file; others mean that it was written."""
    run: KnownRun


class _Kept(msgspec.Struct):
    version: str
    entries: dict[str, _Entry]


class RunIndex:
    """Run files by name, as of their last reading; not safe to use from several threads at once.

    Several processes may keep one for the same directory: the last to save wins, and what is missing is read again.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._entries = _load(self._path)
        self._expires_s: dict[str, float] = {}
        """Until when what is known of a file is good enough although the file was written, by the monotonic clock."""
        self._is_saved = True

    def look(self, path: Path) -> tuple[RunInfo | None, KnownRun | None]:
        """Return what can be said of a file without opening it, and what is known if it was not written since.

        Nothing can be said of a file that is not there.
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
        """Return what a file said if it was asked so lately that it need not be asked again for what it holds."""
        return self._entries[name].run if time.monotonic() < self._expires_s.get(name, 0.0) else None

    def put(self, shown: RunInfo, run: KnownRun, *, recent_s: float = 0.0, is_open: bool = False) -> None:
        """Note what a file says.

        Args:
            shown: the file as it was when the reading began.
            run: what it says.
            recent_s: how long this is good enough, also when the file is written meanwhile.
            is_open: whether this process writes to the file: then it is not worth saving, it changes every second.
        """
        self._entries[shown.file] = _Entry(_stamp(shown), run)
        self._expires_s[shown.file] = time.monotonic() + recent_s
        self._is_saved = self._is_saved and is_open

    def drop(self, name: str) -> None:
        """Forget a file."""
        self._entries.pop(name, None)
        self._expires_s.pop(name, None)

    def save(self, names: set[str]) -> None:
        """Write down what is known of these files, if that is new; without a right to write it stays in memory."""
        if self._is_saved:
            return
        self._is_saved = True
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}
        partial = self._path.with_name(f"{_FILE}.{os.getpid()}")
        with suppress(OSError):
            partial.write_bytes(msgspec.json.encode(_Kept(__version__, self._entries)))
            partial.replace(self._path)


def _stamp(shown: RunInfo) -> tuple[int, int]:
    return shown.size_bytes, int(shown.modified_s * 1000)


def _load(path: Path) -> dict[str, _Entry]:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.DecodeError):
        return {}
    return kept.entries if kept.version == __version__ else {}
