"""TensorBoard event files: scalars with their steps and times, as torch, tensorboardX and TensorFlow write them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from rl_insight.exchange.importing.readers.base import FileRows, Reader
from rl_insight.otlp.wire import fields
from rl_insight.schema.json_values import whole_number

_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
"""Fields of an event."""
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
"""Fields of a summary's value."""
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
"""Fields of a tensor."""
_FORMATS = {1: "<f", 2: "<d"}
"""How single-number tensors store the number, by type."""


class TensorboardReader(Reader):
    """Reads events; each scalar is a record. Images, text, histograms and graphs are left out."""

    role = "tensorboard"

    def add(self, rows: Mapping[Any, FileRows], record: bytes) -> int:
        """Add the scalars of an event."""
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
            rows[None].add_gauges({tag: scalar}, time_ns=time_ns, step=whole_number(step))
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
    """Return the number in a tensor that contains exactly one; None for text, images and anything larger."""
    parts = dict(fields(tensor))
    layout = _FORMATS.get(parts.get(_DTYPE, 0))  # type: ignore[arg-type]  # an integer, or not in the table
    for field in (_CONTENT, _FLOATS, _DOUBLES):
        raw = parts.get(field)
        if layout and isinstance(raw, bytes) and len(raw) == struct.calcsize(layout):
            return float(struct.unpack(layout, raw)[0])
    return None
