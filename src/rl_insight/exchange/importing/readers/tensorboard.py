"""TensorBoard event files: scalars with their steps and times, as torch, tensorboardX and TensorFlow write them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from rl_insight.exchange.importing.readers.base import BinaryReader
from rl_insight.exchange.importing.readers.rows import FileRows
from rl_insight.otlp.wire import fields
from rl_insight.schema import Batch
from rl_insight.schema.names import metric_name

_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
"""Fields of an event."""
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
"""Fields of a summary's value."""
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
"""Fields of a tensor."""
_FORMATS = {1: "<f", 2: "<d"}
"""How tensors of one number hold it, by type."""


class TensorboardReader(BinaryReader):
    """Reads events; each scalar is a record, and images, texts, histograms and graphs are left out."""

    def convert_records(self, records: Sequence[bytes]) -> Iterator[Batch]:
        """Yield one batch of all scalars."""
        rows = FileRows()
        self.context.counts.add_each(records, lambda record: self._add(rows, record), "an event")
        if len(rows.builder):
            yield self.context.build(rows.builder, self.context.process(role="tensorboard"))

    def _add(self, rows: FileRows, record: bytes) -> int:
        seconds, step, summaries = 0.0, 0, []
        for number, value in fields(record):
            if number == _WALL_TIME and isinstance(value, bytes):
                (seconds,) = struct.unpack("<d", value)
            elif number == _STEP and isinstance(value, int):
                step = value - 2**64 if value >= 2**63 else value
            elif number == _SUMMARY and isinstance(value, bytes):
                summaries.append(value)
        found = [scalar for summary in summaries for scalar in _scalars(summary)]
        time_ns = self.context.wall_ns(seconds)
        for tag, scalar in found:
            rows.add_gauge(metric_name(tag), scalar, time_ns=time_ns, step=step)
        return len(found)


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    for number, value in fields(summary):
        if number != _VALUE or not isinstance(value, bytes):
            continue
        parts = dict(fields(value))
        tag, simple, tensor = parts.get(_TAG), parts.get(_SIMPLE_VALUE), parts.get(_TENSOR)
        scalar = None
        if isinstance(simple, bytes):
            (scalar,) = struct.unpack("<f", simple)
        elif isinstance(tensor, bytes):
            scalar = _single(tensor)
        if isinstance(tag, bytes) and scalar is not None:
            yield tag.decode(), scalar


def _single(tensor: bytes) -> float | None:
    """Return the number of a tensor that holds exactly one; None for texts, images and everything larger."""
    parts = dict(fields(tensor))
    layout = _FORMATS.get(parts.get(_DTYPE, 0))  # type: ignore[arg-type]  # an integer, or not in the table
    for field in (_CONTENT, _FLOATS, _DOUBLES):
        raw = parts.get(field)
        if layout and isinstance(raw, bytes) and len(raw) == struct.calcsize(layout):
            return float(struct.unpack(layout, raw)[0])
    return None
