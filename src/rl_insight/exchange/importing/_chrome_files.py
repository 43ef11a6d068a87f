"""Splits Chrome traces that are one JSON document into events, in bounded memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from rl_insight.exchange.importing._cuts import CutBook
from rl_insight.exchange.importing._files import open_file
from rl_insight.exchange.importing.readers.base import Counts, decoded
from rl_insight.exchange.importing.readers.chrome import ChromeReader
from rl_insight.schema import Batch
from rl_insight.schema.tables import LAST_TIME_NS

_BLOCK_BYTES = 1024 * 1024
_MAX_EVENT_BYTES = 64 * 1024 * 1024
_PORTION_EVENTS = 5_000
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BASE_KEY = re.compile(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b')
# Strings are one token each, so that brackets inside them do not count; a lone quote is a string that continues.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)


def read_chrome_file(path: Path, reader: ChromeReader, book: CutBook) -> Iterator[tuple[list[Batch], int]]:
    """Yield the batches of a trace in portions, each with the number of bytes read so far.

    The file is read twice: names of processes and threads may follow the events that need them. The cuts of a
    truncated document are numbers of events.
    """
    with open_file(path) as stream:
        document = _Document(stream, Counts())
        for raw in document.events():
            if b'"M"' in raw:
                for event in decoded(raw, reader.decoder, Counts()):
                    reader.names.note(event)
        reader.base_ns = document.base_ns
    context, taken = reader.context, 0
    counts = context.counts
    with open_file(path) as stream:
        document = _Document(stream, counts)
        events = (event for raw in document.events() for event in decoded(raw, reader.decoder, counts))
        while True:
            cut = next((cut for cut in book.of(context.identity) if cut > taken), taken + _PORTION_EVENTS)
            wanted = min(cut - taken, _PORTION_EVENTS)
            portion = list(islice(events, wanted))
            taken += len(portion)
            if len(portion) < wanted and (counts.partial or stream.damage):
                book.add(context.identity, taken)
            if not portion:
                break
            yield list(reader.convert_records(portion)), document.consumed
        context.note_damage(stream.damage)


class _Document:
    """A document being read."""

    def __init__(self, stream: BinaryIO, counts: Counts) -> None:
        self._stream = stream
        self._counts = counts
        self.consumed = 0
        self.base_ns = 0

    def events(self) -> Iterator[bytes]:
        """Yield the JSON of each event; for a truncated document, of those before the end."""
        buffer = self._find_events()
        if buffer is None:
            return
        position = 0
        while True:
            found = _next_object(buffer, position)
            if found is None:
                self._note_base(buffer)
                return
            start, end = found
            if end:
                yield buffer[start:end]
                position = end
                continue
            block = self._read()
            if not block or len(buffer) - start > _MAX_EVENT_BYTES:
                if buffer[start:].strip(b" \t\r\n,"):
                    self._counts.partial += 1
                return
            buffer, position = buffer[start:] + block, 0

    def _find_events(self) -> bytes | None:
        """Read up to the array of events; None if the document has no such array."""
        buffer = self._read()
        head = buffer.lstrip()
        if head.startswith(b"["):
            return head[1:]
        while True:
            self._note_base(buffer)
            match = _EVENTS_KEY.search(buffer)
            if match:
                return buffer[match.end() :]
            block = self._read()
            if not block:
                self._counts.note_bad("the document has no traceEvents")
                return None
            # The key, or the number before it, may span two blocks.
            buffer = buffer[-256:] + block

    def _note_base(self, buffer: bytes) -> None:
        match = _BASE_KEY.search(buffer)
        if match:
            self.base_ns = min(int(match[1]), LAST_TIME_NS)

    def _read(self) -> bytes:
        block = self._stream.read(_BLOCK_BYTES)
        self.consumed += len(block)
        return block


def _next_object(buffer: bytes, position: int) -> tuple[int, int] | None:
    """Return the start and end of the next object in an array; end 0 if more is needed, None at the array's end."""
    depth = 0
    start = position
    for match in _TOKEN.finditer(buffer, position):
        token = buffer[match.start()]
        if token in b"{[":
            if depth == 0:
                start = match.start()
            depth += 1
        elif token in b"}]":
            depth -= 1
            if depth < 0:
                return None
            if depth == 0:
                return start, match.end()
        elif match.end() - match.start() == 1:
            break
    return start, 0
