"""Request bodies: read and decompressed within bounds, whatever the sender claims."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from importlib.util import find_spec
from io import BytesIO

from rl_insight.errors import InsightError

_GZIP = 16 + zlib.MAX_WBITS
_CHUNK = 1024 * 1024
_MAX_ZSTD_WINDOW = 8 * 1024 * 1024


class BodyError(InsightError):
    """A body that is not taken; `status` is the HTTP status that says so, `reason` one word for the counters."""

    def __init__(self, message: str, *, status: int, reason: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason


async def read_body(stream: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """Read a body of at most `limit` bytes.

    Raises:
        BodyError: it is longer, by what its header says or by what comes.
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


def decompress(body: bytes, encoding: str, limit: int) -> bytes:
    """Return a body as it was before `Content-Encoding`; at most `limit` bytes are ever made.

    >>> import gzip
    >>> decompress(gzip.compress(b"frames"), "gzip", 100)
    b'frames'

    Raises:
        BodyError: an encoding that is not known, damaged data, or more than `limit` bytes.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    if name == "gzip":
        return _gunzip(body, limit)
    if name == "zstd" and find_spec("zstandard") is not None:
        return _unzstd(body, limit)
    raise BodyError(
        f"content encoding {name[:40]!r} is not known here: send gzip, or nothing compressed.",
        status=415,
        reason="encoding",
    )


def _gunzip(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest = body
    try:
        while rest:  # a gzip body may have several members
            member = zlib.decompressobj(_GZIP)
            while not member.eof:
                part = member.decompress(rest, min(_CHUNK, limit - size + 1))
                rest = member.unconsumed_tail
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                parts.append(part)
                if not part and not rest and not member.eof:
                    raise _damaged("gzip", "it is cut short")
            rest = member.unused_data
    except zlib.error as error:
        raise _damaged("gzip", str(error)) from error
    return b"".join(parts)


def _unzstd(body: bytes, limit: int) -> bytes:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=_MAX_ZSTD_WINDOW)
    try:
        with decompressor.stream_reader(BytesIO(body), read_across_frames=True) as reader:
            found: bytes = reader.read(limit + 1)
    except zstandard.ZstdError as error:
        raise _damaged("zstd", str(error)) from error
    if len(found) > limit:
        raise too_large(limit)
    return found


def too_large(limit: int) -> BodyError:
    """Return the refusal of a body longer than the limit."""
    return BodyError(
        f"the body is too large: at most {limit} bytes are taken. Send less at a time.", status=413, reason="too_large"
    )


def _damaged(name: str, problem: str) -> BodyError:
    return BodyError(f"the body is not valid {name}: {problem}.", status=400, reason="encoding")
