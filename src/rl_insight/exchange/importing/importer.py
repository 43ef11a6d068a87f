"""Files into runs: one file, a directory, or a directory that is still being written."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import msgspec

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.importing import formats
from rl_insight.exchange.importing._chrome_files import read_chrome_file
from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._files import (
    DAMAGED_GZIP,
    identity_of,
    is_compressed,
    open_file,
    portions,
    read_head,
)
from rl_insight.exchange.importing._frames import read_frame_file
from rl_insight.exchange.importing.destinations import Destination
from rl_insight.exchange.importing.formats import LINE_READERS
from rl_insight.exchange.importing.readers.base import Counts, FileContext, Reader
from rl_insight.schema import Batch

_MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
_COMPARED_BYTES = 1024

_Place = tuple[int, int]
"""The device and the number of a file, which stay when it is renamed."""

Progress = Callable[[Path, int], None]
"""Called with a file and how many of its bytes have been read since the last call."""


class ImportSummary(msgspec.Struct, kw_only=True):
    """What an import did."""

    files: int = 0
    skipped: list[str] = []
    """Files whose format is not known."""
    formats: dict[str, int] = {}
    records: int = 0
    bad: int = 0
    partial: int = 0
    problems: list[str] = []
    new_batches: int = 0
    duplicate_batches: int = 0
    runs: list[str] = []
    seconds: float = 0.0


class Importer:
    """Imports files.

    >>> importer = Importer(StoreDestination(runs), data_dir=runs.path.parent)  # doctest: +SKIP
    >>> importer.add(Path("logs/session_tracer"))  # doctest: +SKIP
    >>> importer.summary().records  # doctest: +SKIP

    Args:
        destination: where the batches go.
        data_dir: where the ends of growing files are written down.
        run_id: the run; without one, records keep their own, and files that name none go to a run named after them.
        file_format: one of `formats.FORMATS`; without one, each file's content decides.
        origin_ns: what to add to times that do not count from 1970.
        on_progress: told about each portion.
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
        self._destination = destination
        self._data_dir = data_dir
        self._run_id = run_id
        self._format = None if file_format is None else formats.checked_format(file_format)
        self._origin_ns = origin_ns
        self._on_progress = on_progress
        self._books: dict[str, CutBook] = {}
        self._began = time.monotonic()
        self._files: list[_FileImport] = []
        self._skipped: list[str] = []
        self._runs: dict[str, None] = {}
        self._new = self._duplicates = 0
        self._gathered: list[Batch] = []
        self._gathered_bytes = 0

    def add(self, path: Path) -> None:
        """Import a file, or every file of a known kind below a directory.

        Raises:
            ExchangeError: there is nothing to read, or a single file's format is not known.
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
        """Import what is there and what comes, until `stop` is set; new files and rotated ones are found.

        Raises:
            ExchangeError: the path does not exist.
        """
        growing: dict[_Place, _FileImport] = {}
        while True:
            is_last = stop.is_set()
            for file in files_of(path):
                self._advance(file, path, growing)
            self._send()
            if is_last:
                return
            stop.wait(poll_s)

    def _advance(self, file: Path, root: Path, growing: dict[_Place, _FileImport]) -> None:
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
            known.path = file  # a rotated file has another name, and nothing else is new
            known.advance(is_final=False)
        except FileNotFoundError:
            return  # rotated away between two looks

    def _skip(self, file: Path, *, is_alone: bool) -> None:
        if is_alone and file.stat().st_size:
            raise ExchangeError(
                f"cannot import {file}: its format is not known. Name it with --format, one of "
                f"{', '.join(formats.FORMATS)}."
            )
        self._skipped.append(str(file))

    def _open(self, file: Path, root: Path, *, is_growing: bool = False) -> _FileImport | None:
        """Return a file ready to be imported; None for one that is empty, or that cannot be told (yet)."""
        head = read_head(file)
        kind = self._format or formats.detect(head)
        if kind is None or not head.strip():
            return None
        is_document = kind in {formats.CHROME, formats.FRAMES} or (kind == formats.OTLP and _is_document(file))
        identity = identity_of(file.name, head, by_line=not is_document)
        if identity is None:
            if is_growing:
                return None
            # A single line without an end is all there is of some small files.
            identity = identity_of(file.name, head, by_line=False)
        run_id = self._run_id or default_run(root)
        context = FileContext(
            stem=file.name.partition(".")[0],
            identity=identity or "",
            run_id=run_id,
            force_run=self._run_id is not None,
            origin_ns=self._origin_ns,
        )
        reader = LINE_READERS[kind](context) if kind in LINE_READERS else None
        book = self._books.setdefault(run_id, CutBook(self._data_dir, run_id))
        return _FileImport(file, kind, context, reader, book, self._gather, self._on_progress, is_document=is_document)

    def _gather(self, batches: Sequence[Batch], read_bytes: int) -> None:
        """Take the batches of a portion; those of several files go out together."""
        self._gathered += batches
        self._gathered_bytes += read_bytes
        if self._destination.is_enough(self._gathered, self._gathered_bytes):
            self._send()

    def _send(self) -> None:
        batches, self._gathered, self._gathered_bytes = self._gathered, [], 0
        if not batches:
            return
        with _collector_paused():
            receipt = self._destination.send(batches)
        self._new += receipt.new
        self._duplicates += receipt.duplicates
        self._runs.update(dict.fromkeys(batch.process.run_id for batch in batches))

    def summary(self) -> ImportSummary:
        """Return what has been done so far."""
        total = Counts()
        kinds: dict[str, int] = {}
        for file in self._files:
            total.add(file.context.counts)
            kinds[file.kind] = kinds.get(file.kind, 0) + 1
        return ImportSummary(
            files=len(self._files),
            skipped=self._skipped,
            formats=kinds,
            records=total.records,
            bad=total.bad,
            partial=total.partial,
            problems=total.problems,
            new_batches=self._new,
            duplicate_batches=self._duplicates,
            runs=list(self._runs),
            seconds=time.monotonic() - self._began,
        )


class _FileImport:
    """One file on its way into a run, and how far it has come."""

    def __init__(
        self,
        path: Path,
        kind: str,
        context: FileContext,
        reader: Reader | None,
        book: CutBook,
        send: Callable[[Sequence[Batch], int], None],
        on_progress: Progress,
        *,
        is_document: bool,
    ) -> None:
        self.path = path
        self.kind = kind
        self.context = context
        self._reader = reader
        self._book = book
        self._send = send
        self._on_progress = on_progress
        self._is_document = is_document
        self._is_compressed = is_compressed(path)
        self._offset = 0
        self._head = _raw_head(path)
        self._changed_ns = -1
        self._seen_size = -1
        self._is_done = False

    def was_rewritten(self, path: Path, size: int, changed_ns: int) -> bool:
        """Return whether the file has been emptied and written anew, also to the same length."""
        if changed_ns == self._changed_ns:
            return False
        self._changed_ns = changed_ns
        if not self._is_compressed and size < self._offset:
            return True
        return not _raw_head(path).startswith(self._head)

    def advance(self, *, is_final: bool) -> None:
        """Import what is there and was not yet; a last line that is half written waits, unless nothing will follow."""
        if self.kind == formats.FRAMES:
            self._send_portions(read_frame_file(self.path, self._fresh_context(), self._offset))
        elif self._is_document or self._is_compressed:
            self._advance_whole(is_final=is_final)
        else:
            self._advance_lines(is_final=is_final)

    def _fresh_context(self) -> FileContext:
        self.context.counts.partial = 0  # what was half a frame a moment ago may be whole now
        return self.context

    def _advance_whole(self, *, is_final: bool) -> None:
        """Import a file that cannot be followed, once it has stopped growing."""
        size = self.path.stat().st_size
        is_settled = size == self._seen_size
        self._seen_size = size
        if self._is_done or not (is_final or is_settled):
            return
        self._is_done = True
        if self.kind == formats.CHROME:
            self._send_portions(read_chrome_file(self.path, self.context))
        elif self._is_document:
            self._send_document()
        else:
            self._advance_lines(is_final=True)

    def _send_portions(self, found: Iterator[tuple[list[Batch], int]]) -> None:
        for batches, offset in found:
            self._send(batches, offset - self._offset)
            self._on_progress(self.path, offset - self._offset)
            self._offset = offset

    def _send_document(self) -> None:
        """Import an OTLP file that is one document over many lines; it is small, or it would have been cut up."""
        assert self._reader is not None  # noqa: S101  # only frames and Chrome traces have none
        with open_file(self.path) as stream:
            data = stream.read(_MAX_DOCUMENT_BYTES)
        self._send(list(self._reader.convert(data.replace(b"\n", b" "))), len(data))
        self._on_progress(self.path, len(data))
        self._offset = len(data)

    def _advance_lines(self, *, is_final: bool) -> None:
        try:
            with open_file(self.path) as stream:
                if self._offset:
                    stream.seek(self._offset)
                for portion in portions(stream, self._offset, self._book.of(self.context.identity)):
                    if portion.is_partial:
                        if is_final:
                            self._take_partial(portion.data, portion.end)
                        break
                    if portion.skipped:
                        self.context.counts.note_bad("a line is too long", portion.skipped)
                    if portion.is_last:
                        self._book.add(self.context.identity, portion.end)
                    self._send(self._converted(portion.data), len(portion.data))
                    self._on_progress(self.path, portion.end - self._offset)
                    self._offset = portion.end
                    del portion  # its memory serves the next one, which halves the cost of reading
        except DAMAGED_GZIP:
            self.context.counts.partial += 1

    def _converted(self, data: bytes) -> list[Batch]:
        assert self._reader is not None  # noqa: S101  # only frames and Chrome traces have none
        with _collector_paused():
            return list(self._reader.convert(data))

    def _take_partial(self, data: bytes, end: int) -> None:
        """Take a last line without a line end if it is whole; half a line is not a bad line."""
        counts = self.context.counts
        bad, problems = counts.bad, list(counts.problems)
        self._send(self._converted(data), len(data))
        if counts.bad > bad:
            counts.bad, counts.problems = bad, problems
            counts.partial += 1
            return
        self._book.add(self.context.identity, end)
        self._on_progress(self.path, end - self._offset)
        self._offset = end


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from looking through records that are about to be let go: a third of the reading."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _raw_head(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_COMPARED_BYTES)


def files_of(path: Path) -> list[Path]:
    """Return a file itself, or the files of known kinds below a directory, in order.

    Raises:
        ExchangeError: there is nothing at the path.
    """
    if path.is_dir():
        found = (file for file in path.rglob("*") if formats.has_known_suffix(file.name) and file.is_file())
        return sorted(found, key=_oldest_first)
    if not path.exists():
        raise ExchangeError(f"cannot import {path}: there is no such file or directory.")
    return [path]


def _oldest_first(file: Path) -> tuple[str, int]:
    """Sort files by name, but what was put aside by rotation before what came later: `.2`, `.1`, the file itself."""
    name, _, number = str(file).rpartition(".")
    return (name, -int(number)) if number.isdecimal() else (str(file), 0)


def default_run(path: Path) -> str:
    """Return the run that files go to which name none: called after the file or directory.

    >>> default_run(Path("/logs/exp7/sessions-r0.jsonl"))
    'sessions-r0'
    """
    name = path.resolve().name
    return (name if path.is_dir() else name.partition(".")[0]) or "import"


def _is_document(file: Path) -> bool:
    """Return whether a file's first line is only the beginning of a JSON document."""
    with open_file(file) as stream:
        try:
            first = stream.readline(_MAX_DOCUMENT_BYTES)
            msgspec.json.decode(first)
        except (msgspec.DecodeError, UnicodeDecodeError, *DAMAGED_GZIP):
            return True
    return False
