"""One file on its way into a run: whole, or as far as it has been written."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from rl_insight.exchange.importing import formats
from rl_insight.exchange.importing._chrome_files import read_chrome_file
from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._files import DAMAGED_FILE, is_compressed, open_file, portions
from rl_insight.exchange.importing._frames import read_frame_file
from rl_insight.exchange.importing._record_files import read_record_file
from rl_insight.exchange.importing.formats import BINARY_READERS, LINE_READERS
from rl_insight.exchange.importing.readers.base import FileContext
from rl_insight.schema import Batch

_MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
_COMPARED_BYTES = 1024

Progress = Callable[[Path, int], None]
"""Called with a file and how many of its bytes have been read since the last call."""


class FileImport:
    """One file on its way into a run, and how far it has come.

    Args:
        path: the file.
        kind: its format.
        context: counts what is read.
        book: where the ends of growing files are written down.
        send: takes the batches of a portion, and of how many bytes they were made.
        on_progress: told about each portion.
        is_document: whether the file is one document, which cannot be read before it is complete.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        context: FileContext,
        book: CutBook,
        send: Callable[[Sequence[Batch], int], None],
        on_progress: Progress,
        *,
        is_document: bool,
    ) -> None:
        self.path = path
        self.kind = kind
        self.context = context
        self._reader = LINE_READERS[kind](context) if kind in LINE_READERS else None
        self._framing, self._binary = None, None
        if kind in BINARY_READERS:
            self._framing, make_reader = BINARY_READERS[kind]
            self._binary = make_reader(context)
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
        elif self._framing is not None and self._binary is not None:
            self._fresh_context()
            book, identity = self._book, self.context.identity
            self._send_portions(
                read_record_file(
                    self.path, self._framing, self._binary, self._offset, book.of(identity), partial(book.add, identity)
                )
            )
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
        assert self._reader is not None  # noqa: S101  # only binary files and Chrome traces have none
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
        except DAMAGED_FILE:
            self.context.counts.partial += 1

    def _converted(self, data: bytes) -> list[Batch]:
        assert self._reader is not None  # noqa: S101  # only binary files and Chrome traces have none
        with collector_paused():
            return list(self._reader.convert(data))

    def _take_partial(self, data: bytes, end: int) -> None:
        """Take a last line without a line end if it is whole; half a line is not a bad line."""
        counts = self.context.counts
        if self._reader is not None and not self._reader.knows_whole_lines:
            counts.partial += 1
            return
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
def collector_paused() -> Iterator[None]:
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


def is_document(file: Path) -> bool:
    """Return whether a file's first line is only the beginning of a JSON document."""
    with open_file(file) as stream:
        try:
            first = stream.readline(_MAX_DOCUMENT_BYTES)
            msgspec.json.decode(first)
        except (msgspec.DecodeError, UnicodeDecodeError, *DAMAGED_FILE):
            return True
    return False
