"""Writes all records as JSON Lines, in the documented form of `rl_insight.schema.records`."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

from rl_insight.collector.base import Sink
from rl_insight.schema import Batch, process_record, record_json, records

_MAX_OPEN_FILES = 64
_MAX_REMEMBERED_PROCESSES = 100_000


class JsonlSink(Sink):
    """Appends records to one file, or to one file per run.

    In every file, a process record precedes the first record of each process. A file that reaches `max_bytes` is
    renamed to ``<file>.1``, the previous one to ``<file>.2``, and so on, up to `max_backups`. Each batch is flushed to
    the operating system before the next one.

    Args:
        path: the file, or with `per_run` the directory for ``<run id>.jsonl``.
        per_run: write one file per run.
        max_bytes: the size at which a file is rotated, checked between batches.
        max_backups: how many rotated files are kept.
        name: the sink's name in status and metrics.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        per_run: bool = False,
        max_bytes: int = 512 * 1024 * 1024,
        max_backups: int = 5,
        name: str = "jsonl",
    ) -> None:
        self.name = name
        self._path = Path(path).expanduser()
        self._per_run = per_run
        self._max_bytes = max_bytes
        self._max_backups = max_backups
        self._files: OrderedDict[Path, _OpenFile] = OrderedDict()
        self._lines = 0
        self._rotations = 0

    def write(self, batch: Batch) -> None:
        """Append one batch."""
        lines = [record_json(record) for record in records(batch)]
        if not lines:
            return
        file = self._file(self._path / _file_name(batch.process.run_id) if self._per_run else self._path)
        if file.size >= self._max_bytes:
            self._rotate(file)
        if file.introduce(batch.process.process_id):
            lines.insert(0, record_json(process_record(batch)))
        file.append(b"\n".join(lines) + b"\n")
        self._lines += len(lines)

    def close(self) -> None:
        """Close the files."""
        while self._files:
            self._files.popitem()[1].stream.close()

    def get_status(self) -> dict[str, Any]:
        """Return the path and the counts."""
        return {"path": str(self._path), "lines": self._lines, "rotations": self._rotations}

    def _file(self, path: Path) -> _OpenFile:
        file = self._files.get(path)
        if file is None:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = self._files[path] = _OpenFile(path)
            if len(self._files) > _MAX_OPEN_FILES:
                self._files.popitem(last=False)[1].stream.close()
        self._files.move_to_end(path)
        return file

    def _rotate(self, file: _OpenFile) -> None:
        file.stream.close()
        path = file.path
        if self._max_backups < 1:
            path.unlink(missing_ok=True)
        for number in range(self._max_backups, 0, -1):
            older = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if older.exists():
                older.replace(path.with_name(f"{path.name}.{number}"))
        file.open()
        self._rotations += 1


class _OpenFile:
    """One open file, and the processes it has records of."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.open()

    def open(self) -> None:
        self.introduced: OrderedDict[str, None] = OrderedDict()
        self.stream: BinaryIO = self.path.open("ab")
        self.size = self.stream.tell()
        if self.size and not self._ends_with_newline():
            # An earlier writer crashed within a line: do not append to it.
            self.append(b"\n")

    def introduce(self, process_id: str) -> bool:
        """Return whether the file needs a process record, which the caller then writes."""
        if process_id in self.introduced:
            self.introduced.move_to_end(process_id)
            return False
        self.introduced[process_id] = None
        if len(self.introduced) > _MAX_REMEMBERED_PROCESSES:
            self.introduced.popitem(last=False)
        return True

    def append(self, data: bytes) -> None:
        self.stream.write(data)
        self.stream.flush()
        self.size += len(data)

    def _ends_with_newline(self) -> bool:
        with self.path.open("rb") as stream:
            stream.seek(-1, 2)
            return stream.read(1) == b"\n"


def _file_name(run_id: str) -> str:
    """Return a safe file name for a run; a modified id gets a digest, so that two runs never share a file."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)[:120].lstrip(".")
    if safe != run_id:
        safe = f"{safe}-{hashlib.sha256(run_id.encode()).hexdigest()[:12]}"
    return f"{safe}.jsonl"
