"""One file on its way into a run: complete, or as far as it has been written."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rl_insight.exchange.importing._chrome_files import read_chrome_file
from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._files import damage_of, is_compressed, open_file, portions
from rl_insight.exchange.importing._framings import read_record_file
from rl_insight.exchange.importing.formats import FORMATS
from rl_insight.exchange.importing.readers.base import UNDECODABLE, FileContext
from rl_insight.exchange.importing.readers.chrome import ChromeReader
from rl_insight.schema import Batch

_MAX_DOCUMENT_BYTES = 256 * 1024 * 1024
_COMPARED_BYTES = 1024


class FileImport:
    """One file on its way into a run, and how much of it has been read.

    `send` is called with the file, the batches of a portion, and the number of bytes that they were read from. A
    document cannot be read before it is complete. A compressed file is read whenever it has stopped growing: as far as
    it can be read, and later from there on.
    """

    def __init__(
        self,
        path: Path,
        kind: str,
        context: FileContext,
        book: CutBook,
        send: Callable[[Path, Sequence[Batch], int], None],
        *,
        is_document: bool,
    ) -> None:
        self.path = path
        self.kind = kind
        self.context = context
        self._framing = FORMATS[kind].framing
        self._reader = FORMATS[kind].reader(context)
        self._book = book
        self._send = send
        self._is_document = is_document
        self._is_compressed = is_compressed(path)
        self._offset = 0
        self._head = _raw_head(path)
        self._changed_ns = -1
        self._seen_size = -1
        self._read_size = -1
        self._is_done = False

    def was_rewritten(self, path: Path, size: int, changed_ns: int) -> bool:
        """Return whether the file has been truncated and rewritten, even to the same length."""
        if changed_ns == self._changed_ns:
            return False
        self._changed_ns = changed_ns
        if not self._is_compressed and size < self._offset:
            return True
        return not _raw_head(path).startswith(self._head)

    def advance(self, *, is_final: bool) -> None:
        """Import new data; an incomplete last line has to wait, unless this is the last call."""
        if self._framing is not None:
            self._deliver_all(read_record_file(self.path, self._framing, self._reader, self._offset, self._book))
        elif self._is_document or self._is_compressed:
            self._advance_unfollowed(is_final=is_final)
        else:
            self._advance_lines(is_final=is_final)

    def _advance_unfollowed(self, *, is_final: bool) -> None:
        """Import a file that cannot be followed line by line, once it has stopped growing."""
        size = self.path.stat().st_size
        is_settled = size == self._seen_size
        self._seen_size = size
        if self._is_done or size == self._read_size or not (is_final or is_settled):
            return
        self._read_size = size
        if not self._is_document:
            self._advance_lines(is_final=True)
            return
        self.context.note_damage(damage_of(self.path))
        if is_final or not self.context.counts.damaged:
            self._is_done = True
            self._read_document()

    def _read_document(self) -> None:
        if isinstance(self._reader, ChromeReader):
            self._deliver_all(read_chrome_file(self.path, self._reader, self._book))
            return
        # An OTLP request over many lines; it is small, or it would have been split into several.
        with open_file(self.path) as stream:
            data = stream.read(_MAX_DOCUMENT_BYTES)
        if not self.context.counts.damaged:
            self._deliver(list(self._reader.convert(data.replace(b"\n", b" "))), len(data))

    def _deliver_all(self, portions_with_ends: Iterable[tuple[list[Batch], int]]) -> None:
        for batches, end in portions_with_ends:
            self._deliver(batches, end)

    def _deliver(self, batches: list[Batch], end: int) -> None:
        self._send(self.path, batches, end - self._offset)
        self._offset = end

    def _advance_lines(self, *, is_final: bool) -> None:
        self.context.counts.partial = 0  # the truncated line may be complete now
        with open_file(self.path) as stream:
            if self._offset:
                stream.seek(self._offset)
            for portion in portions(stream, self._offset, self._book.of(self.context.identity)):
                if portion.is_partial:
                    if is_final and stream.damage is None:
                        self._take_partial(portion.data, portion.end)
                    break
                if portion.skipped:
                    self.context.counts.note_bad("a line is too long", count=portion.skipped)
                if portion.is_last:
                    self._book.add(self.context.identity, portion.end)
                self._deliver(self._converted(portion.data), portion.end)
                del portion  # its memory is reused for the next one, which halves the cost of reading
            self.context.note_damage(stream.damage)

    def _converted(self, data: bytes) -> list[Batch]:
        with collector_paused():
            return list(self._reader.convert(data))

    def _take_partial(self, data: bytes, end: int) -> None:
        """Take a last line without a newline if it is complete; an incomplete line is not a bad line."""
        counts = self.context.counts
        if not self._reader.detects_partial_lines:
            counts.partial += 1
            return
        bad, problems = counts.bad, list(counts.problems)
        batches = self._converted(data)
        if counts.bad > bad:
            counts.bad, counts.problems = bad, problems
            counts.partial += 1
            return
        self._book.add(self.context.identity, end)
        self._deliver(batches, end)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from scanning records that are about to be freed: a third of the cost of reading."""
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
        except UNDECODABLE:
            return True
    return False
