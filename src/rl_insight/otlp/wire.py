"""Just enough of protobuf's wire format to write the few messages that sinks send, and to read their short answers."""

from __future__ import annotations

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES = 0, 1, 2
"""Wire types."""

_pack_double = struct.Struct("<d").pack
_pack_fixed64 = struct.Struct("<Q").pack
_UINT64 = 2**64


def _long_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


_SHORT = [_long_varint(number) for number in range(2048)]


def varint(number: int) -> bytes:
    """Return an integer of 64 bits as protobuf's `int64`, `uint64`, `bool` and enum types carry it.

    >>> varint(300).hex(), len(varint(-1))
    ('ac02', 10)
    """
    if 0 <= number < 2048:
        return _SHORT[number]
    return _long_varint(number % _UINT64)


def zigzag(number: int) -> bytes:
    """Return an integer as protobuf's `sint32` and `sint64` carry it."""
    return varint(2 * number if number >= 0 else -2 * number - 1)


def tag(number: int, wire_type: int) -> bytes:
    """Return the key of a field, which precedes its value."""
    return varint(number << 3 | wire_type)


def sized(content: bytes) -> bytes:
    """Return text, bytes or an inner message behind its length."""
    return varint(len(content)) + content


def text(value: str) -> bytes:
    """Return text behind its length; what UTF-8 cannot carry becomes an escape."""
    return sized(value.encode("utf-8", "backslashreplace"))


def double(number: float) -> bytes:
    """Return a `double`."""
    return _pack_double(number)


def fixed64(number: int) -> bytes:
    """Return a `fixed64`."""
    return _pack_fixed64(number)


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield number and value of a message's fields; doubles and fixed integers as raw bytes.

    Raises:
        ValueError: the bytes are no message.

    >>> list(fields(tag(1, VARINT) + varint(300) + tag(2, BYTES) + text("x")))
    [(1, 300), (2, b'x')]
    """
    position = 0
    while position < len(message):
        key, position = _read_varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == VARINT:
            value, position = _read_varint(message, position)
            yield number, value
            continue
        if wire_type == BYTES:
            length, position = _read_varint(message, position)
        elif wire_type in {FIXED64, 5}:
            length = 8 if wire_type == FIXED64 else 4
        else:
            raise ValueError(f"not a protobuf message: wire type {wire_type}.")
        if position + length > len(message):
            raise ValueError("not a protobuf message: it is cut off.")
        yield number, message[position : position + length]
        position += length


def _read_varint(message: bytes, position: int) -> tuple[int, int]:
    number = 0
    for shift in range(0, 70, 7):
        if position >= len(message):
            break
        byte = message[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, position
    raise ValueError("not a protobuf message: a number is cut off.")
