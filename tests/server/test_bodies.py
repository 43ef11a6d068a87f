"""Bodies are decompressed within bounds, whatever they claim."""

import contextlib
import gzip
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.server.http.bodies import BodyError, decompress

MEBIBYTE = 1024 * 1024


@given(st.binary(max_size=5000))
def test_what_was_compressed_comes_back(content):
    assert decompress(gzip.compress(content, mtime=0), "gzip", 5000) == content
    assert decompress(zstandard.compress(content), "ZSTD", 5000) == content
    assert decompress(content, "", 10) == decompress(content, "identity", 10) == content


def test_gzip_members_one_after_another_are_one_body():
    assert decompress(gzip.compress(b"one ", mtime=0) + gzip.compress(b"two", mtime=0), "gzip", 100) == b"one two"


@pytest.mark.parametrize(
    "compress", [lambda data: gzip.compress(data, 9, mtime=0), lambda data: zstandard.compress(data, 19)]
)
def test_a_bomb_costs_no_more_than_the_limit(compress):
    bomb = compress(bytes(200 * MEBIBYTE))
    encoding = "gzip" if bomb[:2] == b"\x1f\x8b" else "zstd"
    tracemalloc.start()
    try:
        with pytest.raises(BodyError) as error:
            decompress(bomb, encoding, MEBIBYTE)
        assert tracemalloc.get_traced_memory()[1] < 20 * MEBIBYTE
    finally:
        tracemalloc.stop()
    assert error.value.status == 413


@pytest.mark.parametrize(
    ("body", "encoding", "status"),
    [
        (b"not gzip", "gzip", 400),
        (gzip.compress(b"x" * 1000, mtime=0)[:-12], "gzip", 400),
        (gzip.compress(b"x", mtime=0) + b"rest", "gzip", 400),
        (b"not zstd", "zstd", 400),
        (b"x", "br", 415),
        (b"x", "gzip, gzip", 415),
        (zlib.compress(b"x"), "deflate", 415),
    ],
)
def test_what_cannot_be_read_is_refused(body, encoding, status):
    with pytest.raises(BodyError) as error:
        decompress(body, encoding, 10_000)
    assert error.value.status == status


@given(st.binary(max_size=300), st.sampled_from(["gzip", "zstd"]))
def test_nonsense_never_raises_anything_else(body, encoding):
    with contextlib.suppress(BodyError):
        assert len(decompress(body, encoding, 1000)) <= 1000
