"""Records where growing files ended when they were read, so that reading them again creates no duplicates."""

from __future__ import annotations

from bisect import bisect_left
from pathlib import Path

import msgspec

from rl_insight.store.run_files import file_name


class _Cut(msgspec.Struct):
    file: str
    offset: int


class CutBook:
    """The cuts of all files imported into one run, in a small file next to the runs.

    >>> import tempfile
    >>> directory = Path(tempfile.mkdtemp())
    >>> CutBook(directory, "grpo-7b").add("9f3a", 120)
    >>> CutBook(directory, "grpo-7b").of("9f3a")
    [120]
    """

    def __init__(self, data_dir: Path, run_id: str) -> None:
        self._path = data_dir / "imports" / f"{file_name(run_id)}.jsonl"
        self._cuts: dict[str, list[int]] = {}
        if not self._path.exists():
            return
        for raw in self._path.read_bytes().splitlines():
            try:
                line = msgspec.json.decode(raw, type=_Cut)
            except msgspec.DecodeError:
                continue  # the last line of a process that was killed
            self._insert(line)

    def of(self, file: str) -> list[int]:
        """Return the sorted cuts of a file, by its identity."""
        return self._cuts.get(file, [])

    def add(self, file: str, offset: int) -> None:
        """Store a cut; called before the portion that ends there is sent."""
        line = _Cut(file, offset)
        if not self._insert(line):
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as stream:
            stream.write(msgspec.json.encode(line) + b"\n")

    def _insert(self, line: _Cut) -> bool:
        known = self._cuts.setdefault(line.file, [])
        place = bisect_left(known, line.offset)
        if place < len(known) and known[place] == line.offset:
            return False
        known.insert(place, line.offset)
        return True
