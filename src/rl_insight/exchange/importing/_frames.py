"""RL-Insight's own `.rli` files: frames, each a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.exchange.importing.readers.base import FileContext
from rl_insight.schema import Batch, decode, read_frames
from rl_insight.schema.framing import TruncatedFrameError
from rl_insight.schema.tables import RECORDED

_PORTION_BATCHES = 16
_FRAME_HEADER_BYTES = 12


def read_frame_file(path: Path, context: FileContext, start: int = 0) -> Iterator[tuple[list[Batch], int]]:
    """Yield the batches of a file in portions, each with the offset after it; a broken end is counted as partial.

    The batches keep their process and their sequence number, so a run that has them already takes none twice.
    """
    offset = start
    found: list[Batch] = []
    with path.open("rb") as stream:
        stream.seek(start)
        frames = read_frames(stream)
        while True:
            try:
                payload = next(frames, None)
            except SchemaError as error:
                if isinstance(error, TruncatedFrameError):
                    context.counts.partial += 1
                else:
                    context.counts.note_bad(str(error))
                payload = None
            if payload is None:
                break
            offset += _FRAME_HEADER_BYTES + len(payload)
            batch = _decoded(payload, context)
            if batch is not None:
                found.append(batch)
            if len(found) >= _PORTION_BATCHES:
                yield found, offset
                found = []
    yield found, offset


def _decoded(payload: bytes, context: FileContext) -> Batch | None:
    try:
        batch = decode(payload)
    except SchemaError as error:
        context.counts.note_bad(str(error))
        return None
    context.counts.records += sum(len(getattr(batch, name)) for name in RECORDED)
    if context.force_run:
        batch.process = msgspec.structs.replace(batch.process, run_id=context.run_id)
    # A batch that waited in a file says nothing about its process's clock.
    batch.sent_ns = time.time_ns()
    return batch
