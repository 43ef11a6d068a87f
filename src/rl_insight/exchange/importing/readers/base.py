"""What all readers share: who recorded, sequence numbers, counts, and ids that are the same at each reading."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.schema import Batch, BatchBuilder, Loss, Process
from rl_insight.store.gathered import LAST_TIME_NS

HEARTBEAT_S = 86_400.0
"""A file says nothing about the health of the process that wrote it."""
_WALL_CLOCK_S = 1e9
"""Seconds below this, which would be before September 2001, count from some origin of the writer's own."""
_MAX_PROBLEMS = 5
_encode = msgspec.json.Encoder().encode


class Counts:
    """How a reading goes."""

    __slots__ = ("bad", "partial", "problems", "records")

    def __init__(self) -> None:
        self.records = 0
        self.bad = 0
        self.partial = 0
        """Last lines that end in the middle, as of a file that is being written."""
        self.problems: list[str] = []
        """The first few things that were wrong, for people."""

    def note_bad(self, problem: str, count: int = 1) -> None:
        """Count what could not be read."""
        self.bad += count
        if len(self.problems) < _MAX_PROBLEMS:
            self.problems.append(problem)

    def add_each(self, records: Iterable[bytes], add: Callable[[bytes], int], what: str) -> None:
        """Count what is added of each record; one that is damaged is counted too, and the others are read."""
        for record in records:
            try:
                self.records += add(record)
            except (SchemaError, struct.error, TypeError, ValueError, OverflowError) as error:
                self.note_bad(f"{error} in {what}")

    def add(self, other: Counts) -> None:
        """Add what another reading counted."""
        self.records += other.records
        self.bad += other.bad
        self.partial += other.partial
        self.problems = (self.problems + other.problems)[:_MAX_PROBLEMS]


class FileContext:
    """One file on its way into a run.

    Args:
        stem: the file's name without its suffixes.
        identity: the short name of its content.
        run_id: the run of records that name none.
        force_run: all records go to `run_id`, whatever they say.
        origin_ns: what to add to times that do not count from 1970.
    """

    def __init__(self, *, stem: str, identity: str, run_id: str, force_run: bool = True, origin_ns: int = 0) -> None:
        self.stem = stem
        self.identity = identity
        self.run_id = run_id
        self.force_run = force_run
        self.origin_ns = origin_ns
        self.counts = Counts()
        self.first_sequence = 0
        """Where the counting of batches begins, for a file that holds a part of what its processes recorded."""
        self._sequences: dict[str, int] = {}
        self._told: dict[str, int] = {}

    def process(self, part: str = "", **fields: Any) -> Process:
        """Return the process that stands for the file, or for a part of it."""
        name = "-".join(text for text in (_plain(self.stem), part, self.identity) if text)
        fields.setdefault("host", "imported")
        fields.setdefault("pid", 0)
        fields.setdefault("run_id", self.run_id)
        return Process(process_id=name, heartbeat_s=HEARTBEAT_S, **fields)

    def next_sequence(self, process_id: str) -> int:
        """Count a process's batches; the count depends only on the file."""
        number = self._sequences[process_id] = self._sequences.get(process_id, 0) + 1
        return self.first_sequence + number

    def build(self, builder: BatchBuilder, process: Process) -> Batch:
        """Return what a builder holds as the next batch of a process."""
        return self.seal(builder.build(process, sequence=self.next_sequence(process.process_id), sent_ns=0))

    def seal(self, batch: Batch) -> Batch:
        """Note on a batch what was bad so far, so that the run shows it."""
        batch.sent_ns = time.time_ns()
        if self.counts.bad and self._told.get(batch.process.process_id) != self.counts.bad:
            self._told[batch.process.process_id] = self.counts.bad
            batch.losses = [Loss(kind="records", reason="unreadable", count=self.counts.bad)]
        return batch

    def wall_ns(self, seconds: float) -> int:
        """Return seconds of the file as nanoseconds since 1970.

        >>> FileContext(stem="a", identity="b", run_id="r").wall_ns(1767225600.5)
        1767225600500000000

        Raises:
            ValueError: the time cannot be stored.
            OverflowError: it is infinite.
        """
        nanoseconds = round(seconds * 1e6) * 1000
        if abs(nanoseconds) >= LAST_TIME_NS:
            raise ValueError(f"{seconds:g} is not a time in seconds")
        return nanoseconds if seconds >= _WALL_CLOCK_S else nanoseconds + self.origin_ns


class Reader(ABC):
    """Turns portions of one file into batches; it is given the portions in order, from the first one on."""

    knows_whole_lines = True
    """Whether half a line cannot be taken for a whole one, as half a JSON object cannot."""

    def __init__(self, context: FileContext) -> None:
        self.context = context

    @abstractmethod
    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield the batches of some whole lines; bad lines are counted, never raised."""


class BinaryReader(ABC):
    """Turns binary records of one file into batches; it is given them in order, from the first one on."""

    def __init__(self, context: FileContext) -> None:
        self.context = context

    @abstractmethod
    def convert_records(self, records: Sequence[bytes]) -> Iterator[Batch]:
        """Yield the batches of some records; bad ones are counted, never raised."""


def whole_step(value: Any) -> int | None:
    """Return a step as a file may give it: a number without a fraction that fits the store, else None.

    >>> whole_step(7.0), whole_step("7"), whole_step(True)
    (7, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 2**62:
        return None
    return int(value) if value == int(value) else None


def decoded_lines(data: bytes, decoder: msgspec.json.Decoder[Any], counts: Counts) -> list[Any]:
    """Decode lines of JSON; those that cannot be read are counted."""
    try:
        _check_text(data)
        found: list[Any] = decoder.decode_lines(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = []
        for line in data.splitlines():
            if line.strip():
                _decode_one(line, decoder, counts, found)
    counts.records += len(found)
    return found


def _decode_one(line: bytes, decoder: msgspec.json.Decoder[Any], counts: Counts, found: list[Any]) -> None:
    try:
        _check_text(line)
        found.append(decoder.decode(line))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        counts.note_bad(f"{error} in {line[:80].decode('utf-8', 'replace')!r}")


def _check_text(data: bytes) -> None:
    """Refuse what is no UTF-8; the decoder does not look into values that are kept as they are."""
    if not data.isascii():
        data.decode()


def number_of(*parts: object) -> int:
    """Return an id of 64 bits that depends on the parts alone, and is never 0."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1


def json_text(values: dict[str, Any]) -> str | None:
    """Return values as the text of a JSON object; None when there are none."""
    return _encode(values).decode() if values else None


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60]
