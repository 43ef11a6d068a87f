"""Frames: columns of NumPy arrays to insert into a table of the store.

A column holds numbers, strings or lists. Strings stay positions in the string tables of their batches until DuckDB
reads them. Nothing is converted row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_insight.store.arrow import ArrowArray, ArrowType, bits, schema_capsule, stream_capsule

_TEXT = ArrowType("uint32", dictionary=ArrowType("text"))
_KINDS = (np.bool_, np.int16, np.int32, np.uint32, np.int64, np.uint64, np.float64)
_NUMBERS = {np.dtype(kind): ArrowType(np.dtype(kind).name) for kind in _KINDS}


class Texts:
    """The string table of columns of positions. Position 0 means that a string is absent."""

    def __init__(self, strings: list[str]) -> None:
        self.strings = strings

    def between(self, first: int, end: int) -> TextColumn:
        """Return the strings from one position up to another."""
        return TextColumn(np.arange(first, end, dtype=np.uint32), self)

    def at(self, positions: NDArray[Any]) -> TextColumn:
        """Return the strings at some positions; absent ones are null."""
        return TextColumn(positions.astype(np.uint32, copy=False), self)

    def required(self, positions: NDArray[Any]) -> TextColumn:
        """Return the strings at some positions; absent ones are empty."""
        return TextColumn(positions.astype(np.uint32, copy=False), self, is_required=True)

    @cached_property
    def encoded(self) -> ArrowArray:
        """The strings as an Arrow array, starting with the empty string."""
        joined = "".join(self.strings)
        data = joined.encode()
        lengths = map(len, self.strings) if len(data) == len(joined) else (len(one.encode()) for one in self.strings)
        offsets = np.zeros(len(self.strings) + 2, np.int64)
        np.cumsum(np.fromiter(lengths, np.int64, len(self.strings)), out=offsets[2:])
        return ArrowArray(len(self.strings) + 1, (None, offsets, np.frombuffer(data, np.uint8)))


@dataclass(frozen=True, slots=True)
class NumberColumn:
    """Numbers or booleans."""

    values: NDArray[Any]
    missing: NDArray[np.bool_] | None = None
    """Where a value is missing."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def type(self) -> ArrowType:
        """The type for Arrow."""
        return _NUMBERS[self.values.dtype]

    def take(self, rows: NDArray[Any]) -> NumberColumn:
        """Return some rows, by number or by a mask."""
        return NumberColumn(self.values[rows], None if self.missing is None else self.missing[rows])

    def to_list(self) -> list[Any]:
        """Return the values as Python objects."""
        values: list[Any] = self.values.tolist()
        if self.missing is None:
            return values
        return [None if is_missing else value for value, is_missing in zip(values, self.missing.tolist(), strict=True)]

    def content(self) -> ArrowArray:
        """Return the values for Arrow."""
        values = bits(self.values) if self.values.dtype == np.bool_ else self.values
        null_count = 0 if self.missing is None else int(np.count_nonzero(self.missing))
        valid = bits(~self.missing) if self.missing is not None and null_count else None
        return ArrowArray(len(self), (valid, values), null_count)


@dataclass(frozen=True, slots=True)
class TextColumn:
    """Strings by position."""

    positions: NDArray[np.uint32]
    texts: Texts
    is_required: bool = False
    """Absent strings are empty instead of null."""

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def type(self) -> ArrowType:
        """The type for Arrow."""
        return _TEXT

    def take(self, rows: NDArray[Any]) -> TextColumn:
        """Return some rows, by number or by a mask."""
        return TextColumn(self.positions[rows], self.texts, self.is_required)

    def to_list(self) -> list[str | None]:
        """Return the strings."""
        texts = ["" if self.is_required else None, *self.texts.strings]
        return [texts[position] for position in self.positions.tolist()]

    def content(self) -> ArrowArray:
        """Return the strings for Arrow."""
        present = self.positions != 0
        null_count = 0 if self.is_required else len(self) - int(np.count_nonzero(present))
        valid = bits(present) if null_count else None
        return ArrowArray(len(self), (valid, self.positions), null_count, dictionary=self.texts.encoded)


@dataclass(frozen=True, slots=True)
class ListColumn:
    """Lists of numbers, or of structs if the items are a frame."""

    offsets: NDArray[np.int64]
    """The start of each list in the items, and the end of the last one."""
    items: NumberColumn | Frame

    @classmethod
    def of(cls, lengths: NDArray[Any], items: NumberColumn | Frame) -> ListColumn:
        """Return lists of the given lengths over consecutive items."""
        return cls(_offsets(lengths), items)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def type(self) -> ArrowType:
        """The type for Arrow."""
        return ArrowType("list", (("item", self.items.type),))

    def take(self, rows: NDArray[Any]) -> ListColumn:
        """Return some rows, by number or by a mask."""
        begins, lengths = self.offsets[:-1][rows], np.diff(self.offsets)[rows]
        offsets = _offsets(lengths)
        places = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
        return ListColumn(offsets, self.items.take(places))

    def content(self) -> ArrowArray:
        """Return the lists for Arrow."""
        return ArrowArray(len(self), (None, self.offsets), children=(self.items.content(),))


Column = NumberColumn | TextColumn | ListColumn


@dataclass(frozen=True, slots=True)
class Frame:
    """Columns of equal length, by name."""

    columns: dict[str, Column]

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()))) if self.columns else 0

    @property
    def type(self) -> ArrowType:
        """The type for Arrow."""
        return ArrowType("struct", tuple((name, column.type) for name, column in self.columns.items()))

    def numbers(self, name: str) -> NDArray[Any]:
        """Return the numbers of a column, missing ones included."""
        column = self.columns[name]
        if not isinstance(column, NumberColumn):
            raise TypeError(f"{name} is not a column of numbers.")
        return column.values

    def to_list(self, name: str) -> list[Any]:
        """Return a column of numbers or strings as Python objects."""
        column = self.columns[name]
        if isinstance(column, ListColumn):
            raise TypeError(f"{name} is a column of lists.")
        return column.to_list()

    def lists(self, name: str, fields: Sequence[str]) -> list[list[tuple[Any, ...]]]:
        """Return a column of lists of structs, each struct as a tuple of some of its fields."""
        column = self.columns[name]
        if not isinstance(column, ListColumn) or not isinstance(column.items, Frame):
            raise TypeError(f"{name} is not a column of lists of structs.")
        items = list(zip(*map(column.items.to_list, fields), strict=True))
        return [items[first:end] for first, end in pairwise(column.offsets.tolist())]

    def take(self, rows: NDArray[Any]) -> Frame:
        """Return some rows, by number or by a mask."""
        return Frame({name: column.take(rows) for name, column in self.columns.items()})

    def content(self) -> ArrowArray:
        """Return the rows for Arrow."""
        children = tuple(column.content() for column in self.columns.values())
        return ArrowArray(len(self), (None,), children=children)


class FrameStream:
    """An Arrow stream of frames with the same columns."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        self.frames = frames
        """Can be replaced by frames of the same type between two reads."""
        self.type = frames[0].type

    def __arrow_c_schema__(self) -> object:
        """Return a capsule of the type, see Arrow's PyCapsule interface."""
        return schema_capsule(self.type)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return a capsule, see Arrow's PyCapsule interface, which allows ignoring the requested schema."""
        return stream_capsule(self.type, (frame.content() for frame in self.frames))


def frame_of(columns: Mapping[str, Any]) -> Frame:
    """Return columns as a frame; arrays become columns without missing values."""
    return Frame(
        {name: NumberColumn(column) if isinstance(column, np.ndarray) else column for name, column in columns.items()}
    )


def column_of(values: Sequence[Any], kind: type[Any]) -> Column:
    """Return Python values as a column of `str` or of one of NumPy's number types; None is null."""
    if kind is str:
        positions = np.fromiter((0 if one is None else place for place, one in enumerate(values, 1)), np.uint32)
        return TextColumn(positions, Texts(["" if one is None else one for one in values]))
    missing = np.fromiter((one is None for one in values), np.bool_, len(values))
    if not missing.any():
        return NumberColumn(np.array(values, kind))
    return NumberColumn(np.array([0 if one is None else one for one in values], kind), missing)


def repeated(value: Any, kind: type[Any], count: int) -> Column:
    """Return a column with the same value in each row; None is null."""
    if kind is str:
        return TextColumn(np.full(count, 0 if value is None else 1, np.uint32), Texts([value or ""]))
    if value is None:
        return NumberColumn(np.zeros(count, kind), np.ones(count, np.bool_))
    return NumberColumn(np.full(count, value, kind))


def _offsets(lengths: NDArray[Any]) -> NDArray[np.int64]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets
