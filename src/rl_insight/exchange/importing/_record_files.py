"""Files of binary records: read in portions whose ends depend on the content alone, as files of lines are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rl_insight.exchange.importing._files import DAMAGED_FILE, PORTION_BYTES, open_file
from rl_insight.exchange.importing._framings import Framing
from rl_insight.exchange.importing.readers.base import BinaryReader
from rl_insight.schema import Batch


def read_record_file(
    path: Path,
    framing: Framing,
    reader: BinaryReader,
    start: int,
    cuts: Sequence[int],
    add_cut: Callable[[int], None],
) -> Iterator[tuple[list[Batch], int]]:
    """Yield the batches of a file in portions, each with the offset after it.

    Args:
        path: the file.
        framing: takes it apart.
        reader: turns records into batches.
        start: where an earlier call ended.
        cuts: offsets at which earlier readings ended.
        add_cut: called with the end of the file, before what ends there is yielded.
    """
    counts = reader.context.counts
    ends = frozenset(cuts)
    records: list[bytes] = []
    size, offset = 0, start
    with open_file(path) as stream:
        stream.seek(start)
        try:
            for record, end in framing(stream, start, counts):
                offset = end
                records.append(record)
                size += len(record)
                if size >= PORTION_BYTES or end in ends:
                    yield list(reader.convert_records(records)), end
                    records, size = [], 0
        except DAMAGED_FILE:
            counts.partial += 1
    if records:
        add_cut(offset)
        yield list(reader.convert_records(records)), offset
