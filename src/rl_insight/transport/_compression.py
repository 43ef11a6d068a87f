"""Compression of request bodies."""

from __future__ import annotations

import gzip
import importlib.util
from typing import Final

from rl_insight.errors import ConfigError

COMPRESSIONS: Final = ("auto", "none", "gzip", "zstd")


def choose_compression(choice: str, *, is_loopback: bool) -> str | None:
    """Return the content encoding for a setting; None for no compression.

    Raises:
        ConfigError: there is no such setting, or its package is missing.
    """
    if choice not in COMPRESSIONS:
        raise ConfigError(f"http.compression is {choice!r}. Choose one of: {', '.join(COMPRESSIONS)}.")
    if choice == "none" or (choice == "auto" and is_loopback):
        return None
    has_zstd = importlib.util.find_spec("zstandard") is not None
    if choice == "zstd" and not has_zstd:
        raise ConfigError(
            "http.compression is 'zstd', but the package zstandard is missing. "
            "Install it with: pip install 'rl-insight[zstd]'."
        )
    return "zstd" if has_zstd and choice != "gzip" else "gzip"


def compress(body: bytes, encoding: str | None) -> bytes:
    """Return a body compressed with a content encoding."""
    if encoding is None:
        return body
    if encoding == "gzip":
        return gzip.compress(body, compresslevel=1)
    import zstandard

    compressed: bytes = zstandard.compress(body, 1)
    return compressed
