"""Limits on OTLP requests, checked before decoding.

An empty span takes 2 bytes on the wire and 170 as a protobuf message; the smallest valid span takes 40 bytes, and a
kilobyte while it is converted to a row. A few megabytes of them, or a few kilobytes with gzip, would use gigabytes of
memory. So repeated elements are counted in the raw bytes. Requests of the usual size cannot exceed the limit and are
not scanned.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from rl_insight.errors import SchemaError, TooLargeError
from rl_insight.otlp.wire import BYTES, FIXED32, FIXED64, VARINT, walk

_SMALLEST_ITEM_BYTES = 2
_BYTES_PER_PACKED_ITEM = 8
"""Bytes of packed numbers that count as one item: a number takes 8 bytes in memory, an item 100."""
_COMMAS_PER_ITEM = 8
_FIELDS_PER_ITEM = 16
_TAGS_PER_ITEM = 2
_MAX_UNSCANNED_BYTES = 16 * 1024 * 1024
"""Packed numbers have no tags, and expand up to 16 times in memory."""
_MAX_DEPTH = 100
"""The nesting limit of protobuf itself."""
_MESSAGE, _PACKED, _TEXT = 1, 2, 3
_UNKNOWN = (0, False, None)
_Shape = dict[int, tuple[int, bool, Any]]


def check_protobuf(body: bytes, descriptor: Any, max_items: int) -> None:
    """Reject a protobuf message with more than `max_items` repeated elements at all depths.

    Raises:
        TooLargeError: it has more.
        SchemaError: the bytes are not a protobuf message.
    """
    if len(body) <= _SMALLEST_ITEM_BYTES * max_items or _is_surely_small(body, descriptor, max_items):
        return
    _Count(body, max_items).scan(0, len(body), _shape(descriptor))


def _is_surely_small(body: bytes, descriptor: Any, max_items: int) -> bool:
    """Return whether too few bytes look like the tag of a repeated element to exceed the limit.

    This takes 1 µs per span, the scan 20 µs. A typical span with nine attributes has 44 such bytes and ten elements, so
    up to twice as many bytes as elements are allowed: that many empty messages still fit.
    """
    if len(body) > _MAX_UNSCANNED_BYTES:
        return False
    tags = len(body) - len(body.translate(None, _first_bytes(descriptor)))
    return tags <= _TAGS_PER_ITEM * max_items


class _Count:
    """Counts repeated elements, and all fields, since each takes time to scan."""

    def __init__(self, body: bytes, max_items: int) -> None:
        self._body = body
        self._max_items = max_items
        self._items = self._fields = 0

    def scan(self, position: int, end: int, shape: _Shape, depth: int = 0) -> None:
        """Count the elements of the message from `position` to `end`."""
        if depth > _MAX_DEPTH:
            raise SchemaError("not an OTLP request: nested too deeply.")
        for number, wire_type, begin, after in walk(self._body, position, end):
            kind, is_repeated, inner = shape.get(number, _UNKNOWN)
            self._fields += 1
            self._items += is_repeated
            if wire_type == BYTES and kind == _PACKED:
                self._items += (after - begin) // _BYTES_PER_PACKED_ITEM
            if self._items > self._max_items or self._fields > _FIELDS_PER_ITEM * self._max_items:
                raise _too_many(self._max_items)
            if wire_type == BYTES and kind == _MESSAGE and begin < after:
                self.scan(begin, after, _shape(inner), depth + 1)


def check_json(body: bytes, max_items: int) -> None:
    """Reject JSON with too many objects, arrays and values; brackets in strings count too.

    An OTLP attribute takes two objects, so two objects count as one item, and so do eight commas.

    Raises:
        TooLargeError: it has more than `max_items`.
    """
    if len(body) <= _SMALLEST_ITEM_BYTES * max_items:
        return
    containers = body.count(b"{") + body.count(b"[")
    if containers // 2 + body.count(b",") // _COMMAS_PER_ITEM > max_items:
        raise _too_many(max_items)


@cache
def _shape(descriptor: Any) -> _Shape:
    """Return kind, whether it is repeated, and the inner message type of each field that is not a single number."""
    found: _Shape = {}
    for field in descriptor.fields:
        if field.message_type is not None:
            found[field.number] = (_MESSAGE, _is_repeated(field), field.message_type)
        elif _is_repeated(field):
            kind = _TEXT if field.cpp_type == field.CPPTYPE_STRING else _PACKED
            found[field.number] = (kind, True, None)
    return found


@cache
def _first_bytes(descriptor: Any) -> bytes:
    """Return the possible first bytes of the tag of a repeated element, at any depth of a message."""
    found: set[int] = set()
    seen: set[str] = set()
    waiting = [descriptor]
    while waiting:
        message = waiting.pop()
        if message.full_name in seen:
            continue
        seen.add(message.full_name)
        for number, (kind, is_repeated, inner) in _shape(message).items():
            wire_types = (VARINT, FIXED64, BYTES, FIXED32) if kind == _PACKED else (BYTES,)
            # A varint may be longer than necessary: then its first byte has the high bit set.
            found |= {
                number << 3 & 0x7F | wire_type | high for wire_type in wire_types for high in (0, 0x80) if is_repeated
            }
            waiting += [inner] if inner is not None else []
    return bytes(found)


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31


def _too_many(max_items: int) -> TooLargeError:
    return TooLargeError(
        f"the request has more than {max_items} spans, points, records and attributes. Send smaller requests, or raise "
        "max_request_items."
    )
