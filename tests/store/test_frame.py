"""Frames as Arrow streams: read by DuckDB, and fully validated by an Arrow library."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.store.frame import (
    Frame,
    FrameStream,
    ListColumn,
    NumberColumn,
    Texts,
    column_of,
    frame_of,
    repeated,
)

_KINDS: dict[type[Any], st.SearchStrategy[Any]] = {
    np.int32: st.integers(-(2**31), 2**31 - 1),
    np.int64: st.integers(-(2**63), 2**63 - 1),
    np.uint64: st.integers(0, 2**64 - 1),
    np.float64: st.floats(allow_nan=False),
    np.bool_: st.booleans(),
    str: st.text(st.characters(codec="utf-8"), max_size=20),
}


def read(*frames: Frame) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("arriving", FrameStream(frames))
        return connection.execute("SELECT * FROM arriving").fetchall()


def validated(*frames: Frame) -> pa.Table:
    table = pa.table(FrameStream(frames))
    table.validate(full=True)
    return table


@st.composite
def frames(draw: st.DrawFn) -> list[tuple[Frame, list[tuple[Any, ...]]]]:
    kinds = draw(st.lists(st.sampled_from(list(_KINDS)), min_size=1, max_size=5))
    pieces = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.lists(st.tuples(*(st.none() | _KINDS[kind] for kind in kinds)), max_size=9))
        columns: Sequence[Any] = list(zip(*rows, strict=True)) or [()] * len(kinds)
        named = {
            f"c{place}": column_of(own, kind) for place, (own, kind) in enumerate(zip(columns, kinds, strict=True))
        }
        pieces.append((Frame(named), rows))
    return pieces


@given(frames())
def test_values_arrive_as_they_were(pieces: list[tuple[Frame, list[tuple[Any, ...]]]]) -> None:
    expected = [row for _, rows in pieces for row in rows]
    parts = [frame for frame, _ in pieces]
    table = validated(*parts)
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == expected
    assert read(*parts) == expected


def test_texts_of_several_batches_keep_their_own_positions() -> None:
    first, second = Texts(["a", "ä" * 20]), Texts(["b"])
    one = frame_of({"t": first.at(np.array([1, 2, 0])), "u": first.required(np.array([0, 2, 1]))})
    two = frame_of({"t": second.at(np.array([0, 1])), "u": second.required(np.array([1, 0]))})
    expected = [("a", ""), ("ä" * 20, "ä" * 20), (None, "a"), (None, "b"), ("b", "")]
    assert read(one, two) == expected
    assert validated(one, two).num_rows == 5


def phases(lengths: list[int], names: list[str | None], starts: list[float]) -> Frame:
    items = Frame({"name": column_of(names, str), "start": column_of(starts, np.float64)})
    return frame_of({"id": np.arange(len(lengths)), "phases": ListColumn.of(np.array(lengths), items)})


def test_lists_of_structs_are_read_and_filtered() -> None:
    frame = phases([2, 0, 1, 0, 1], ["a", None, "b", "c"], [1.0, 2.0, 3.0, 4.0])
    validated(frame)
    first, third = [{"name": "a", "start": 1.0}, {"name": None, "start": 2.0}], [{"name": "b", "start": 3.0}]
    last = [{"name": "c", "start": 4.0}]
    assert read(frame) == [(0, first), (1, []), (2, third), (3, []), (4, last)]
    kept = frame.take(np.array([False, True, True, False, True]))
    validated(kept)
    assert read(kept) == [(1, []), (2, third), (4, last)]
    assert read(frame.take(np.array([4, 0]))) == [(4, last), (0, first)]


def test_columns_of_bytes_that_are_not_aligned_are_read() -> None:
    raw = b"x" + np.arange(5, dtype="<i8").tobytes()
    values = (
        np.frombuffer(raw[1:], "<i8") if np.frombuffer(raw, "u1").ctypes.data % 8 else np.frombuffer(raw, "<i8", 5, 1)
    )
    frame = frame_of({"n": values, "every other": np.arange(10)[::2]})
    validated(frame)
    assert read(frame) == [(number, 2 * number) for number in range(5)]


def test_nan_stays_a_number_and_missing_is_null() -> None:
    frame = frame_of({"n": NumberColumn(np.array([np.nan, 1.0]), np.array([False, True]))})
    ((first,), (second,)) = read(frame)
    assert np.isnan(first)
    assert second is None


@pytest.mark.parametrize("value", [None, "text", ""])
def test_one_text_is_repeated(value: str | None) -> None:
    assert read(Frame({"t": repeated(value, str, 3)})) == [(value,)] * 3


@pytest.mark.parametrize("value", [None, 7])
def test_one_number_is_repeated(value: int | None) -> None:
    assert read(Frame({"n": repeated(value, np.int64, 2)})) == [(value,)] * 2


def test_everything_is_released_whether_it_was_read_or_not() -> None:
    values = np.arange(3)
    texts = Texts(["a", "b"])
    frame = frame_of({"n": values, "t": texts.at(np.array([1, 0, 2]))})
    stream = FrameStream([frame, frame])
    strings = texts.encoded.buffers[2]
    before = sys.getrefcount(values), sys.getrefcount(strings)
    assert len(read(frame, frame)) == 6
    column = pa.table(stream).column("t")  # outlives the array that it was part of
    gc.collect()
    assert sys.getrefcount(strings) > before[1]
    assert column.to_pylist() == ["a", None, "b"] * 2
    reader = pa.RecordBatchReader.from_stream(stream)
    reader.read_next_batch()
    stream.__arrow_c_stream__()
    stream.__arrow_c_schema__()
    del column, reader
    gc.collect()
    assert (sys.getrefcount(values), sys.getrefcount(strings)) == before


def test_text_that_has_no_utf8_is_an_error_of_the_reader() -> None:
    with pytest.raises(duckdb.Error, match="UnicodeEncodeError"):
        read(Frame({"t": column_of(["\ud800"], str)}))


def test_a_column_of_lists_has_no_plain_values() -> None:
    frame = phases([1], ["a"], [1.0])
    with pytest.raises(TypeError, match="phases"):
        frame.to_list("phases")
    with pytest.raises(TypeError, match="phases"):
        frame.numbers("phases")
