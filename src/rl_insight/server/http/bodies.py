"""Request bodies: read and decompressed within limits, whatever the sender claims."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Iterator
from importlib.util import find_spec
from io import BytesIO
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from rl_insight.errors import InsightError

if TYPE_CHECKING:
    from rl_insight.server.config import ServerSettings
    from rl_insight.server.counters import Reservation

_GZIP = 16 + zlib.MAX_WBITS
_CHUNK = 1024 * 1024
_MAX_ZSTD_WINDOW = 8 * 1024 * 1024
_ANY_RATIO_BYTES = 16 * 1024 * 1024
"""Up to this size any compression ratio is accepted: a few identical lines reach 1000 to 1."""


OVERLOADED = "too many requests are in flight. Retry later."


class BodyError(InsightError):
    """A refused body; `status` is the HTTP status, `reason` a label for the counters."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


def media_type(headers: Headers) -> str:
    """Return the media type of a body, in lower case and without parameters; empty if the header is missing."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_body(stream: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """Read a body of at most `limit` bytes.

    Raises:
        BodyError: it is longer, according to its header or as received.
    """
    if declared is not None and declared.isdecimal() and int(declared) > limit:
        raise too_large(limit)
    parts: list[bytes] = []
    size = 0
    async for part in stream:
        size += len(part)
        if size > limit:
            raise too_large(limit)
        parts.append(part)
    return b"".join(parts)


def unpacked_limit(body: bytes, settings: ServerSettings) -> int:
    """Return how many bytes a body may decompress to."""
    by_ratio = int(settings.max_decompression_ratio * len(body))
    return min(settings.max_decompressed_bytes, max(_ANY_RATIO_BYTES, by_ratio))


def decompress(body: bytes, encoding: str, limit: int, reservation: Reservation | None = None) -> bytes:
    """Decompress a body; at most `limit` bytes are ever produced.

    >>> import gzip
    >>> decompress(gzip.compress(b"frames"), "gzip", 100)
    b'frames'

    Args:
        body: the bytes as received.
        encoding: the value of `Content-Encoding`.
        limit: the longest result.
        reservation: grows with the decompressed bytes.

    Raises:
        BodyError: unknown encoding, damaged data, more than `limit` bytes, or no room for them now.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name == "gzip":
        unpacked = _gunzip(body, limit)
    elif name == "zstd" and find_spec("zstandard") is not None:
        unpacked = _unzstd(body)
    else:
        raise BodyError(
            f"content encoding {name[:40]!r} is not supported: send gzip, or an uncompressed body.",
            status=415,
            reason="encoding",
        )
    parts: list[bytes] = []
    size = 0
    for part in unpacked:
        size += len(part)
        if size > limit:
            raise too_large(limit)
        if reservation is not None and not reservation.grow(len(part)):
            raise overloaded()
        parts.append(part)
    return b"".join(parts)


def _gunzip(body: bytes, limit: int) -> Iterator[bytes]:
    rest = body
    try:
        while rest:  # a gzip body may have several members
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                part = member.decompress(rest, min(_CHUNK, limit + 1))
                rest = member.unconsumed_tail
                yield part
                if not part and not rest and not member.eof:
                    raise _damaged("gzip", "it is truncated")
            rest = member.unused_data
    except zlib.error as error:
        raise _damaged("gzip", str(error)) from error


def _unzstd(body: bytes) -> Iterator[bytes]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    try:
        with decompressor.stream_reader(BytesIO(body), read_across_frames=True) as reader:
            while part := reader.read(_CHUNK):
                yield part
    except zstandard.ZstdError as error:
        raise _damaged("zstd", str(error)) from error


def overloaded() -> BodyError:
    """Return the error for a body that does not fit alongside the other requests in flight."""
    return BodyError(OVERLOADED, status=503, reason="overload")


def too_large(limit: int) -> BodyError:
    """Return the error for a body longer than the limit."""
    return BodyError(
        f"the body is too large: the limit is {limit} bytes. Send less at a time.", status=413, reason="too_large"
    )


def _damaged(name: str, problem: str) -> BodyError:
    return BodyError(f"the body is not valid {name}: {problem}.", status=400, reason="encoding")
