"""Bounds on an OTLP request that are checked before it is decoded.

An empty span takes two bytes on the wire and 170 as a protobuf message; the smallest valid one 40 bytes and, while it
becomes a row, a kilobyte. A few megabytes of them, a few kilobytes with gzip, would take gigabytes. So the repeated
elements of a request are counted in its raw bytes. Requests of the usual size cannot hold too many and are not scanned.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rl_insight.errors import SchemaError, TooLargeError

_SMALLEST_ITEM_BYTES = 2
_BYTES_PER_PACKED_ITEM = 8
"""So many bytes of packed numbers count as one item: a number takes eight bytes in memory, an item a hundred."""
_COMMAS_PER_ITEM = 8
_FIELDS_PER_ITEM = 16
_MAX_DEPTH = 100
"""As deep as protobuf itself reads."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MESSAGE, _PACKED, _TEXT = 1, 2, 3
_UNKNOWN = (0, False, None)
_Shape = dict[int, tuple[int, bool, Any]]


def check_protobuf(body: bytes, descriptor: Any, max_items: int) -> None:
    """Refuse a protobuf message with more repeated elements, at all depths, than `max_items`.

    Raises:
        TooLargeError: it holds more.
        SchemaError: the bytes are not a protobuf message.
    """
    if len(body) <= _SMALLEST_ITEM_BYTES * max_items:
        return
    _Count(body, max_items).scan(0, len(body), _shape(descriptor))


class _Count:
    """Counts repeated elements, and fields of any kind, which take time to scan."""

    def __init__(self, body: bytes, max_items: int) -> None:
        self._body = body
        self._max_items = max_items
        self._items = self._fields = 0

    def scan(self, position: int, end: int, shape: _Shape, depth: int = 0) -> None:
        """Count what is inside of the message from `position` to `end`."""
        body = self._body
        while position < end:
            key, position = _varint(body, position)
            kind, is_repeated, inner = shape.get(key >> 3, _UNKNOWN)
            self._fields += 1
            self._items += is_repeated
            begin, position = _value(body, position, key & 7)
            if position > end:
                raise _not_protobuf()
            if key & 7 == _BYTES and kind == _PACKED:
                self._items += (position - begin) // _BYTES_PER_PACKED_ITEM
            if self._items > self._max_items or self._fields > _FIELDS_PER_ITEM * self._max_items:
                raise _too_many(self._max_items)
            if key & 7 == _BYTES and kind == _MESSAGE and begin < position:
                if depth == _MAX_DEPTH:
                    raise SchemaError("not an OTLP request: it is nested too deeply.")
                self.scan(begin, position, _shape(inner), depth + 1)


def check_json(body: bytes, max_items: int) -> None:
    """Refuse JSON with so many objects, arrays and values that they would not fit; texts are not told apart.

    An OTLP attribute takes two objects, so two of them count as one item, and so do eight commas.

    Raises:
        TooLargeError: it holds more than `max_items`.
    """
    if len(body) <= _SMALLEST_ITEM_BYTES * max_items:
        return
    containers = body.count(b"{") + body.count(b"[")
    if containers // 2 + body.count(b",") // _COMMAS_PER_ITEM > max_items:
        raise _too_many(max_items)


@cache
def _shape(descriptor: Any) -> _Shape:
    """Return kind, whether it is repeated, and the inner message type, of each field that takes more than a number."""
    found: _Shape = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = (_MESSAGE, _is_repeated(field), field.message_type)
        elif _is_repeated(field):
            kind = _TEXT if field.cpp_type == field.CPPTYPE_STRING else _PACKED
            found[field.number] = (kind, True, None)
    return found


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31


def _value(body: bytes, position: int, wire_type: int) -> tuple[int, int]:
    """Return where a field's value begins and ends."""
    if wire_type == _BYTES:
        length, position = _varint(body, position)
        return position, position + length
    if wire_type == _VARINT:
        return position, _varint(body, position)[1]
    if wire_type == _FIXED64:
        return position, position + 8
    if wire_type == _FIXED32:
        return position, position + 4
    raise _not_protobuf()


def _varint(body: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    try:
        while (byte := body[position]) > 0x7F:
            number |= (byte & 0x7F) << shift
            shift += 7
            position += 1
            if shift > 63:
                raise _not_protobuf()
    except IndexError:
        raise _not_protobuf() from None
    return number | byte << shift, position + 1


def _not_protobuf() -> SchemaError:
    return SchemaError("not an OTLP request: the bytes are not a protobuf message.")


def _too_many(max_items: int) -> TooLargeError:
    return TooLargeError(
        f"the request holds more than {max_items} spans, points, records and attributes. Send less at a time, or raise "
        "max_request_items."
    )
