"""Imports files into runs: one file, a directory, or a directory that is still being written."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event

import msgspec

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.importing import formats
from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._file_import import FileImport, collector_paused, is_document
from rl_insight.exchange.importing._files import HEAD_BYTES, damage_of, identity_of, read_head, uncompressed_name
from rl_insight.exchange.importing._framings import first_record
from rl_insight.exchange.importing.destinations import Destination
from rl_insight.exchange.importing.readers.base import Counts, FileContext
from rl_insight.schema import Batch

_Place = tuple[int, int]
"""The device and inode of a file, which do not change when it is renamed."""
Progress = Callable[[Path, int], None]
"""Called with a file and how many of its bytes have been read since the last call."""


class ImportSummary(Counts, kw_only=True):
    """The result of an import."""

    files: int = 0
    skipped: list[str] = msgspec.field(default_factory=list)
    """Files whose format is unknown."""
    formats: dict[str, int] = msgspec.field(default_factory=dict)
    new_batches: int = 0
    duplicate_batches: int = 0
    runs: list[str] = msgspec.field(default_factory=list)
    seconds: float = 0.0


class Importer:
    """Imports files.

    >>> importer = Importer(StoreDestination(runs), data_dir=runs.path.parent)  # doctest: +SKIP
    >>> importer.add(Path("logs/session_tracer"))  # doctest: +SKIP
    >>> importer.summary().records  # doctest: +SKIP

    Args:
        destination: where the batches go.
        data_dir: where the ends of growing files are recorded.
        run_id: the run; without one, records keep theirs, and files without one go to a run named after them.
        file_format: one of `formats.FORMATS`; without one, it is detected from the content of each file.
        origin_ns: added to times that do not count from 1970.
        on_progress: called for each portion.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        data_dir: Path,
        run_id: str | None = None,
        file_format: str | None = None,
        origin_ns: int = 0,
        on_progress: Progress = lambda _path, _size: None,
    ) -> None:
        known = formats.FORMATS
        if file_format is not None and file_format not in known:
            raise ExchangeError(f"format {file_format!r} is unknown: it must be auto or one of {', '.join(known)}.")
        self._destination = destination
        self._data_dir = data_dir
        self._run_id = run_id
        self._format = file_format
        self._origin_ns = origin_ns
        self._on_progress = on_progress
        self._books: dict[str, CutBook] = {}
        self._began = time.monotonic()
        self._files: list[FileImport] = []
        self._summary = ImportSummary()
        self._gathered: list[Batch] = []
        self._gathered_bytes = 0

    def add(self, path: Path) -> None:
        """Import a file, or every file of a known kind under a directory.

        Raises:
            ExchangeError: the path does not exist, or the format of a single file is unknown.
        """
        try:
            for file in files_of(path):
                opened = self._open(file, path)
                if opened is None:
                    self._skip(file, is_alone=file == path)
                    continue
                self._files.append(opened)
                opened.advance(is_final=True)
        finally:
            self._send()

    def follow(self, path: Path, stop: Event, poll_s: float = 0.5) -> None:
        """Import existing and added data until `stop` is set, including new and rotated files.

        Raises:
            ExchangeError: the path does not exist.
        """
        growing: dict[_Place, FileImport] = {}
        while True:
            is_last = stop.is_set()
            for file in files_of(path):
                self._advance(file, path, growing)
            self._send()
            if is_last:
                return
            stop.wait(poll_s)

    def _advance(self, file: Path, root: Path, growing: dict[_Place, FileImport]) -> None:
        try:
            found = file.stat()
            place = (found.st_dev, found.st_ino)
            known = growing.get(place)
            if known is None or known.was_rewritten(file, found.st_size, found.st_mtime_ns):
                known = self._open(file, root, is_growing=True)
                if known is None:
                    return  # it may become readable
                growing[place] = known
                self._files.append(known)
            known.path = file  # rotation renames a file, and changes nothing else
            known.advance(is_final=False)
        except FileNotFoundError:
            return  # rotated away in the meantime

    def _skip(self, file: Path, *, is_alone: bool) -> None:
        damage = damage_of(file)
        if is_alone and damage is not None:
            raise ExchangeError(f"cannot import {file}: {damage}.")
        if is_alone and file.stat().st_size:
            raise ExchangeError(
                f"cannot import {file}: its format is unknown. Set --format to one of {', '.join(formats.FORMATS)}."
            )
        if damage is not None:
            self._summary.damaged.append(damage)
            return
        self._summary.skipped.append(str(file))

    def _open(self, file: Path, root: Path, *, is_growing: bool = False) -> FileImport | None:
        """Return a file ready to be imported; None for one that is empty, or whose format is unknown so far."""
        head = read_head(file)
        kind = self._format or formats.detect(head)
        if kind is None or not head.strip():
            return None
        identity = self._identity(file, kind, head, is_growing=is_growing)
        if identity is None:
            return None
        run_id = self._run_id or formats.run_name(kind, file, root)
        context = FileContext(
            stem=file.name.partition(".")[0],
            identity=identity,
            run_id=run_id,
            force_run=self._run_id is not None,
            origin_ns=self._origin_ns,
            is_followed=is_growing,
        )
        is_document = _is_single_document(file, kind)
        return FileImport(file, kind, context, self._book(run_id), self._gather, is_document=is_document)

    def _book(self, run_id: str) -> CutBook:
        book = self._books.get(run_id)
        if book is None:
            book = self._books[run_id] = CutBook(self._data_dir, run_id)
        return book

    def _identity(self, file: Path, kind: str, head: bytes, *, is_growing: bool) -> str | None:
        """Return the short name of a file's content; None for a growing file whose first record is not complete."""
        framing = formats.FORMATS[kind].framing
        if framing is not None:
            first = first_record(head, framing)
            if first is None and is_growing and len(head) < HEAD_BYTES:
                return None
            return identity_of(file.name, head if first is None else first, by_line=False)
        identity = identity_of(file.name, head, by_line=not _is_single_document(file, kind))
        if identity is None and not is_growing:
            # Some small files have a single line without a newline.
            identity = identity_of(file.name, head, by_line=False)
        return identity

    def _gather(self, file: Path, batches: Sequence[Batch], read_bytes: int) -> None:
        """Collect the batches of a portion; those of several files are sent together."""
        self._on_progress(file, read_bytes)
        self._gathered += batches
        self._gathered_bytes += read_bytes
        if self._destination.is_enough(self._gathered, self._gathered_bytes):
            self._send()

    def _send(self) -> None:
        batches, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not batches:
            return
        with collector_paused():
            receipt = self._destination.send(batches)
        summary = self._summary
        summary.new_batches += receipt.new
        summary.duplicate_batches += receipt.duplicates
        summary.runs = list(dict.fromkeys((*summary.runs, *(batch.process.run_id for batch in batches))))

    def summary(self) -> ImportSummary:
        """Return the counts so far."""
        found = msgspec.structs.replace(
            self._summary,
            files=len(self._files),
            formats=dict(Counter(file.kind for file in self._files)),
            seconds=time.monotonic() - self._began,
        )
        for file in self._files:
            found.add(file.context.counts)
        return found


def files_of(path: Path) -> list[Path]:
    """Return a file itself, or the files of known kinds under a directory, in order.

    Raises:
        ExchangeError: the path does not exist.
    """
    if path.is_dir():
        found = (file for file in path.rglob("*") if formats.has_known_suffix(file.name) and file.is_file())
        return sorted(found, key=_oldest_first)
    if not path.exists():
        raise ExchangeError(f"cannot import {path}: no such file or directory.")
    return [path]


def _oldest_first(file: Path) -> tuple[str, int]:
    """Sort files by name, and rotated ones from the oldest to the newest: `.2`, `.1`, the file itself."""
    plain = uncompressed_name(str(file))
    name, _, number = plain.rpartition(".")
    return (name, -int(number)) if number.isdecimal() else (plain, 0)


def _is_single_document(file: Path, kind: str) -> bool:
    """Return whether a file is one document, which cannot be read before it is complete."""
    return kind == "chrome" or (kind == "otlp" and is_document(file))
