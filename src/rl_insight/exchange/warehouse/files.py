"""Where exported files go: a folder, or anything that fsspec supports."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rl_insight.exchange.errors import ExchangeError
from rl_insight.files import replacing


class ParquetFolder:
    """A folder or an object store.

    A file appears with all of its content or not at all; an existing file of the same name is replaced.

    Raises:
        ExchangeError: the URL needs a package that is not installed.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._remote = _file_system(self.url) if "://" in url and not url.startswith("file://") else None
        self._local = Path(url.removeprefix("file://")).expanduser()

    def put(self, source: Path, name: str) -> None:
        """Move a local file to the target."""
        if self._remote is not None:
            # Object stores show an object only once it is complete.
            self._remote.put_file(str(source), f"{self.url}/{name}")
            return
        path = self._local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, durable=True) as partial:
            shutil.copyfile(source, partial)


def _file_system(url: str) -> Any:
    try:
        import fsspec  # type: ignore[import-untyped]
    except ImportError as error:
        advice = 'install fsspec with `pip install "rl-insight[warehouse]"`.'
        raise ExchangeError(f"cannot write to {url}: {advice}") from error
    try:
        return fsspec.core.url_to_fs(url)[0]
    except (ImportError, ValueError) as error:
        raise ExchangeError(f"cannot write to {url}: {error}. Install the package for that file system.") from error
