"""Output that is there in full or not at all."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, cast

from rl_insight.exchange.errors import ExchangeError


@contextmanager
def output_file(path: Path, *, is_packed: bool = False) -> Iterator[BinaryIO]:
    """Lend a stream whose content becomes the file when the block ends well.

    A name that ends in `.gz` compresses it, unless what is written `is_packed` already.

    Raises:
        ExchangeError: the place cannot be written to.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as stream:
            if path.suffix == ".gz" and not is_packed:
                with gzip.GzipFile(fileobj=stream, mode="wb", filename="", mtime=0, compresslevel=3) as packed:
                    yield cast("BinaryIO", packed)
            else:
                yield stream
        partial.replace(path)
    except OSError as error:
        raise ExchangeError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def output_directory(path: Path) -> Iterator[Path]:
    """Lend a directory that gets its name when the block ends well.

    Raises:
        ExchangeError: something is there already, or the place cannot be written to.
    """
    if path.exists():
        raise ExchangeError(f"cannot write {path}: it exists. Choose another name, or remove it first.")
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        partial.mkdir(parents=True)
        yield partial
        partial.rename(path)
    except OSError as error:
        raise ExchangeError(f"cannot write {path}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
