"""Exports that hold everything: records as JSON Lines, and frames."""

from __future__ import annotations

from pathlib import Path

from rl_insight.exchange.exporting._read_back import read_back
from rl_insight.exchange.exporting.rows import Selection
from rl_insight.exchange.exporting.writers.output import output_file
from rl_insight.schema import encode, frame, process_record, record_json, records
from rl_insight.schema.tables import RECORDED
from rl_insight.store.queries import Cursor


def write_records(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write records, one a line; returns how many."""
    written = 0
    introduced: set[str] = set()
    with output_file(path) as stream:
        for batch in read_back(cursor, selection):
            lines = [record_json(record) for record in records(batch)]
            written += len(lines)
            if batch.process.process_id not in introduced:
                introduced.add(batch.process.process_id)
                lines.insert(0, record_json(process_record(batch)))
            stream.write(b"\n".join(lines) + b"\n")
    return written


def write_frames(cursor: Cursor, path: Path, selection: Selection) -> int:
    """Write frames, as offline runs do; returns how many records they hold."""
    written = 0
    with output_file(path) as stream:
        for batch in read_back(cursor, selection):
            written += sum(len(getattr(batch, name)) for name in RECORDED) + len(batch.losses)
            stream.write(frame(encode(batch)))
    return written
