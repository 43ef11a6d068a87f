"""Arrays in memory as a stream of Arrow's C data interface, which DuckDB reads without copying.

The interface is three C structures (https://arrow.apache.org/docs/format/CDataInterface.html). This module fills them
with the addresses of NumPy arrays, so the server needs no Arrow library, which would be as large as all its other
dependencies together. The small libraries cannot build dictionaries from arrays: nanoarrow 0.9 (3 MB) needs every
string written out, 12 ms of CPU time instead of 4 for 10,000 spans, and arro3-core 0.9 (11 MB) does not support nulls
in NumPy arrays either. An exported structure keeps its arrays alive until its reader calls `release`, from any thread.

`release` is a Python function, which could not run with a Python exception pending. Readers are written in C++ or Rust
and never release anything in that state.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_FORMATS = {
    "bool": "b",
    "int16": "s",
    "int32": "i",
    "uint32": "I",
    "int64": "l",
    "uint64": "L",
    "float64": "g",
    # 64-bit offsets: the strings of many batches may exceed 2 GiB in total.
    "text": "U",
    "list": "+L",
    "struct": "+s",
}
_NULLABLE = 2


class ArrowType(NamedTuple):
    """The type of an array: its name, the fields of a struct or the items of a list, or the values of a dictionary."""

    name: str
    """A NumPy type, or `text`, `list`, `struct`."""
    children: tuple[tuple[str, ArrowType], ...] = ()
    dictionary: ArrowType | None = None


class ArrowArray(NamedTuple):
    """The content of an array. Its first buffer is the validity bitmap; None if all values are valid."""

    length: int
    buffers: tuple[NDArray[Any] | None, ...]
    null_count: int = 0
    children: tuple[ArrowArray, ...] = ()
    dictionary: ArrowArray | None = None


def bits(flags: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return booleans as Arrow stores them: eight per byte, the first in the lowest bit."""
    return np.packbits(flags, bitorder="little")


def stream_capsule(kind: ArrowType, arrays: Iterable[ArrowArray]) -> object:
    """Return a stream of arrays as a capsule for `__arrow_c_stream__`; each array is made on demand."""
    stream = _Stream(*_STREAM_FUNCTIONS, _keep(_StreamState(kind, iter(arrays))))
    return _capsule(stream, _STREAM_NAME)


def schema_capsule(kind: ArrowType) -> object:
    """Return a type as a capsule for `__arrow_c_schema__`."""
    return _capsule(_new_schema(kind), _SCHEMA_NAME)


def schema_of_stream(capsule: object) -> object:
    """Return the type of any producer's stream as a capsule, without reading the stream.

    Raises:
        RuntimeError: the producer returned an error.
    """
    address = _capsule_pointer(capsule, _STREAM_NAME)
    schema = _Schema()
    failure = _FILL(_Stream.from_address(address).get_schema)(address, ctypes.addressof(schema))
    if failure:
        raise RuntimeError(f"cannot read the schema of an Arrow stream: error {failure}.")
    return _capsule(schema, _SCHEMA_NAME)


class _StreamState:
    def __init__(self, kind: ArrowType, arrays: Iterator[ArrowArray]) -> None:
        self.kind = kind
        self.arrays = arrays
        self.error = b""


class _Schema(ctypes.Structure):
    pass


_Schema._fields_ = [
    ("format", ctypes.c_char_p),
    ("name", ctypes.c_char_p),
    ("metadata", ctypes.c_char_p),
    ("flags", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("children", ctypes.POINTER(ctypes.POINTER(_Schema))),
    ("dictionary", ctypes.POINTER(_Schema)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Array(ctypes.Structure):
    pass


_Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(_Array))),
    ("dictionary", ctypes.POINTER(_Array)),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.c_void_p),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_kept: dict[int, Any] = {}
"""The objects that exported structures refer to, by `private_data`."""
_tokens = count(1)


def _keep(what: object) -> int:
    token = next(_tokens)
    _kept[token] = what
    return token


class _SchemaPlan(NamedTuple):
    """The structures of a type as one block of 64-bit integers, copied for each reader.

    DuckDB reads a type several times per statement: this takes 10 us, filling structures one by one takes 200.
    """

    integers: NDArray[np.int64]
    pointers: NDArray[np.int64]
    """Offsets of the pointers into the block; they are relative to its start."""
    releases: NDArray[np.int64]
    """Offsets of `release` in all structures but the first."""
    texts: list[ctypes.Array[ctypes.c_char]]


@lru_cache(maxsize=256)
def _schema_plan(kind: ArrowType) -> _SchemaPlan:
    integers: list[int] = []
    pointers: list[int] = []
    releases: list[int] = []
    texts: list[ctypes.Array[ctypes.c_char]] = []

    def add_text(text: str) -> int:
        texts.append(ctypes.create_string_buffer(text.encode()))
        return ctypes.addressof(texts[-1])

    def point(place: int, target: int) -> None:
        integers[place] = 8 * target
        pointers.append(place)

    def add(name: str, kind: ArrowType) -> int:
        """Add a structure and its descendants; return its offset."""
        place = len(integers)
        below = len(kind.children)
        integers.extend((add_text(_FORMATS[kind.name]), add_text(name), 0, _NULLABLE, below, 0, 0, _RELEASE_SCHEMA, 0))
        releases.append(place + 7)
        if below:
            room = len(integers)
            integers.extend([0] * below)
            point(place + 5, room)
            for number, (child_name, child) in enumerate(kind.children):
                point(room + number, add(child_name, child))
        if kind.dictionary is not None:
            point(place + 6, add("", kind.dictionary))
        return place

    add("", kind)
    return _SchemaPlan(np.array(integers), np.array(pointers, np.int64), np.array(releases[1:], np.int64), texts)


def _new_schema(kind: ArrowType) -> _Schema:
    plan = _schema_plan(kind)
    block = plan.integers.copy()
    block[plan.pointers] += block.__array_interface__["data"][0]
    schema = _Schema.from_buffer_copy(block)
    schema.private_data = _keep((plan, block))
    return schema


def _release_schema_at(address: int) -> None:
    schema = _Schema.from_address(address)
    schema.release = None
    plan, block = _kept.get(schema.private_data, (None, None))
    # Child structures that a reader moved still need the block, so it is kept. DuckDB moves none.
    if plan is not None and block[plan.releases].all():
        del _kept[schema.private_data]


def _fill_array(array: _Array, content: ArrowArray) -> None:
    children = [_Array() for _ in content.children]
    for child, child_content in zip(children, content.children, strict=True):
        _fill_array(child, child_content)
    pointers = (ctypes.POINTER(_Array) * len(children))(*map(ctypes.pointer, children))
    buffers = [None if one is None else _in_order(one) for one in content.buffers]
    places = (None if one is None else one.__array_interface__["data"][0] for one in buffers)
    addresses = (ctypes.c_void_p * len(buffers))(*places)
    array.length, array.null_count = content.length, content.null_count
    array.n_buffers, array.buffers = len(buffers), addresses
    array.n_children, array.children = len(children), pointers
    dictionary = None
    if content.dictionary is not None:
        dictionary = _Array()
        _fill_array(dictionary, content.dictionary)
        array.dictionary = ctypes.pointer(dictionary)
    array.release = _RELEASE_ARRAY
    array.private_data = _keep((children, pointers, buffers, addresses, dictionary))


def _in_order(buffer: NDArray[Any]) -> NDArray[Any]:
    """Return an aligned, contiguous array: the columns of a batch are slices of the received bytes."""
    flags = buffer.flags
    return buffer if flags.aligned and flags.c_contiguous else np.require(buffer, requirements=("C", "A"))


def _release_array_at(address: int) -> None:
    """Release a structure and its children, except for those that the reader moved."""
    array = _Array.from_address(address)
    below = array.children[: array.n_children]
    if array.dictionary:
        below.append(array.dictionary)
    for pointer in below:
        if pointer.contents.release:
            _release_array_at(ctypes.addressof(pointer.contents))
    array.release = None
    _kept.pop(array.private_data, None)


def _answering(fill: Callable[[_StreamState, int], None]) -> Callable[[int, int], int]:
    """Return a stream callback: its result is 0, or an errno whose text `get_last_error` returns."""

    def answer(stream: int, out: int) -> int:
        state = _kept[_Stream.from_address(stream).private_data]
        try:
            fill(state, out)
        except Exception as error:  # noqa: BLE001  (C calls this: nothing can be raised into it)
            state.error = f"{type(error).__name__}: {error}".encode(errors="replace")
            return errno.EIO
        return 0

    return answer


def _write_schema(state: _StreamState, out: int) -> None:
    schema = _new_schema(state.kind)
    ctypes.memmove(out, ctypes.addressof(schema), ctypes.sizeof(schema))


def _write_next(state: _StreamState, out: int) -> None:
    array = _Array()
    content = next(state.arrays, None)
    if content is not None:
        _fill_array(array, content)
    # All zero after the last one: `release` is null.
    ctypes.memmove(out, ctypes.addressof(array), ctypes.sizeof(array))


def _last_error(stream: int) -> int | None:
    error = _kept[_Stream.from_address(stream).private_data].error
    return ctypes.cast(error, ctypes.c_void_p).value if error else None


def _release_stream_at(address: int) -> None:
    stream = _Stream.from_address(address)
    _kept.pop(stream.private_data, None)
    stream.release = None


_in_capsules: dict[int, _Schema | _Stream] = {}
"""The structures inside capsules, by the capsules' addresses."""


def _capsule(structure: _Schema | _Stream, name: bytes) -> object:
    capsule = _new_capsule(ctypes.addressof(structure), name, _DESTROY_CAPSULE)
    _in_capsules[id(capsule)] = structure
    return capsule


def _destroy(capsule: int) -> None:
    """Release the content of a capsule unless its reader took it, which leaves `release` null."""
    structure = _in_capsules.pop(capsule)
    if structure.release:
        _RELEASE(structure.release)(ctypes.addressof(structure))


_STREAM_NAME, _SCHEMA_NAME = b"arrow_array_stream", b"arrow_schema"
_RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_FILL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
_TELL = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
_functions = (
    _FILL(_answering(_write_schema)),
    _FILL(_answering(_write_next)),
    _TELL(_last_error),
    _RELEASE(_release_stream_at),
    _RELEASE(_release_schema_at),
    _RELEASE(_release_array_at),
    _RELEASE(_destroy),
)
"""The callbacks that C calls; never freed."""
*_STREAM_FUNCTIONS, _RELEASE_SCHEMA, _RELEASE_ARRAY, _DESTROY_CAPSULE = (
    ctypes.cast(function, ctypes.c_void_p).value or 0 for function in _functions
)
# Binding prototypes here leaves `ctypes.pythonapi`, which other packages share, unchanged.
_new_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
