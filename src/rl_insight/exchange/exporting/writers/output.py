"""Output that appears complete or not at all."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from rl_insight.exchange.errors import ExchangeError
from rl_insight.files import replacing


@contextmanager
def output_file(path: Path, *, is_packed: bool = False) -> Iterator[BinaryIO]:
    """Yield a stream whose content becomes the file if the block succeeds.

    A name that ends in `.gz` compresses it, unless the content `is_packed` already.

    Raises:
        ExchangeError: the path cannot be written.
    """
    with _partial(path) as partial, partial.open("wb") as stream:
        if path.suffix == ".gz" and not is_packed:
            with gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0, compresslevel=3) as packed:
                yield cast("BinaryIO", packed)
        else:
            yield stream


@contextmanager
def output_directory(path: Path) -> Iterator[Path]:
    """Yield a directory that is renamed to `path` if the block succeeds.

    Raises:
        ExchangeError: the path already exists, or cannot be written.
    """
    if path.exists():
        raise ExchangeError(f"cannot write {path}: it exists. Choose another name, or remove it first.")
    with _partial(path) as partial:
        partial.mkdir()
        yield partial


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as partial:
            yield partial
    except OSError as error:
        raise ExchangeError(f"cannot write {path}: {error.strerror or error}.") from error
