"""The base of all readers: processes, sequence numbers, counts, and ids that are the same on every read."""

from __future__ import annotations

import hashlib
import re
import struct
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from rl_insight.intake.process import FIRST_HEARTBEAT_S
from rl_insight.metrics import GAUGE
from rl_insight.schema import Batch, BatchBuilder, Loss, Process
from rl_insight.schema.json_values import json_text
from rl_insight.schema.names import metric_name
from rl_insight.schema.tables import LAST_TIME_NS

WALL_CLOCK_S = 1e9
"""Times before September 2001 count from some other origin."""
_MAX_PROBLEMS = 5
_SHOWN = 80
UNDECODABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions raised by decoding bad JSON."""


class Counts(msgspec.Struct, kw_only=True):
    """The results of reading files so far."""

    records: int = 0
    bad: int = 0
    partial: int = 0
    """Truncated last records, as in a file that is still being written."""
    damaged: list[str] = []
    """Compressed files that are damaged or incomplete, and how much of each could be read."""
    problems: list[str] = []
    """The first few errors, for people."""

    def note_bad(self, problem: object, record: object = None, count: int = 1) -> None:
        """Count unreadable records, and keep the first few problems with the beginning of their record."""
        self.bad += count
        if len(self.problems) < _MAX_PROBLEMS:
            shown = record[:_SHOWN].decode("utf-8", "replace") if isinstance(record, bytes) else record
            self.problems.append(str(problem) if record is None else f"{problem} in {repr(shown)[:_SHOWN]}")

    def add(self, other: Counts) -> None:
        """Add the counts of another file."""
        self.records += other.records
        self.bad += other.bad
        self.partial += other.partial
        self.damaged = self.damaged + other.damaged
        self.problems = (self.problems + other.problems)[:_MAX_PROBLEMS]


class FileRows:
    """The rows of one process, while they are collected; each metric with its labels is added once as a series."""

    def __init__(self) -> None:
        self.builder = BatchBuilder()
        self._series: dict[tuple[str, str, str], int] = {}

    def series_of(self, name: str, kind: str, documentation: str = "", labels: Mapping[str, str] | None = None) -> int:
        """Return the position of a series."""
        text = json_text(dict(labels or {})) or "{}"
        key = (name, kind, text)
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = self.builder.add_series(name, kind, documentation, text)
        return found

    def add_gauges(
        self,
        values: Mapping[str, Any],
        *,
        time_ns: int,
        step: int | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Add the numbers among some values as gauges, under the names that Prometheus allows."""
        for name, value in values.items():
            if isinstance(value, (int, float)):
                series = self.series_of(metric_name(name), GAUGE.name, labels=labels)
                self.builder.add_sample(series, time_ns=time_ns, value=float(value), step=step)


class FileContext:
    """What readers know about a file.

    Args:
        stem: the file's name without its suffixes.
        identity: the short name of its content.
        run_id: the run of records that do not name one.
        force_run: all records go to `run_id`, even if they name another run.
        origin_ns: added to times that do not count from 1970.
        is_followed: the file is still being written, so its processes are alive.
    """

    def __init__(
        self,
        *,
        stem: str,
        identity: str,
        run_id: str,
        force_run: bool = True,
        origin_ns: int = 0,
        is_followed: bool = False,
    ) -> None:
        self.stem = stem
        self.identity = identity
        self.run_id = run_id
        self.force_run = force_run
        self.origin_ns = origin_ns
        self.is_followed = is_followed
        self.counts = Counts()
        self.first_sequence = 0
        """Added to sequence numbers, for a file that contains only a part of what its processes recorded."""
        self._sequences: dict[str, int] = {}
        self._reported: dict[str, int] = {}

    def process(self, part: str = "", **fields: Any) -> Process:
        """Return the process that represents the file, or a part of it."""
        name = "-".join(text for text in (_plain(self.stem), part, self.identity) if text)
        fields.setdefault("host", "imported")
        fields.setdefault("pid", 0)
        fields.setdefault("run_id", self.run_id)
        return Process(process_id=name, heartbeat_s=FIRST_HEARTBEAT_S, **fields)

    def next_sequence(self, process_id: str) -> int:
        """Return the next sequence number of a process, which depends only on the file."""
        number = self._sequences[process_id] = self._sequences.get(process_id, 0) + 1
        return self.first_sequence + number

    def build(self, builder: BatchBuilder, process: Process) -> Batch:
        """Return the rows of a builder as the next batch of a process."""
        return self.seal(builder.build(process, sequence=self.next_sequence(process.process_id), sent_ns=0))

    def seal(self, batch: Batch) -> Batch:
        """Mark a batch as final unless its file is still growing, and add the bad records so far as a loss."""
        batch.sent_ns = time.time_ns() if self.is_followed else 0
        batch.final = batch.final or not self.is_followed
        if self.counts.bad and self._reported.get(batch.process.process_id) != self.counts.bad:
            self._reported[batch.process.process_id] = self.counts.bad
            batch.losses = [*batch.losses, Loss(kind="records", reason="unreadable", count=self.counts.bad)]
        return batch

    def note_damage(self, damage: str | None) -> None:
        """Record what is wrong with the file's compression, if anything; a truncated last record is part of that."""
        self.counts.damaged = [] if damage is None else [damage]
        if damage is not None:
            self.counts.partial = 0

    def wall_ns(self, seconds: float) -> int:
        """Return a time in seconds as nanoseconds since 1970.

        >>> FileContext(stem="a", identity="b", run_id="r").wall_ns(1767225600.5)
        1767225600500000000

        Raises:
            ValueError: the time cannot be stored.
            OverflowError: it is infinite.
        """
        nanoseconds = round(seconds * 1e6) * 1000
        if abs(nanoseconds) >= LAST_TIME_NS:
            raise ValueError(f"{seconds:g} is not a time in seconds")
        return nanoseconds if seconds >= WALL_CLOCK_S else nanoseconds + self.origin_ns


class Reader:
    """Turns the records of one file into batches; it receives them in order, starting with the first.

    Most readers override `add`, and `process` where a file has several. JSON Lines are decoded with `decoder`.
    """

    decoder: ClassVar[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(dict[str, Any])
    detects_partial_lines: ClassVar[bool] = True
    """Whether an incomplete line cannot be mistaken for a complete one, as is the case for JSON objects."""
    numbers_batches: ClassVar[bool] = True
    """Whether it numbers batches itself: portions must then end in the same places whenever the file is read."""
    role: ClassVar[str] = ""

    def __init__(self, context: FileContext) -> None:
        self.context = context

    def convert(self, data: bytes) -> Iterator[Batch]:
        """Yield the batches of some complete lines; bad lines are counted, never raised."""
        return self.convert_records(decoded_lines(data, self.decoder, self.context.counts))

    def convert_records(self, records: Iterable[Any]) -> Iterator[Batch]:
        """Yield a batch per process of some records; bad ones are counted, never raised."""
        rows: defaultdict[Any, FileRows] = defaultdict(FileRows)
        counts = self.context.counts
        for record in records:
            try:
                counts.records += self.add(rows, record)
            except (struct.error, TypeError, ValueError, OverflowError) as error:
                counts.note_bad(error, record)
        for key, own in rows.items():
            batch = self.batch(key, own)
            if batch is not None:
                yield batch

    def add(self, rows: Mapping[Any, FileRows], record: Any) -> int:
        """Add a record to the rows of its process, under any key that identifies the process; return its record count.

        Raises:
            ValueError: the record is bad. So are those that raise TypeError, OverflowError or struct.error.
        """
        raise NotImplementedError

    def process(self, key: Any) -> Process:
        """Return the process of a key; by default one process represents the file."""
        del key
        return self.context.process(role=self.role)

    def batch(self, key: Any, rows: FileRows) -> Batch | None:
        """Return the next batch of a process; None where its rows are empty."""
        return self.context.build(rows.builder, self.process(key)) if len(rows.builder) else None


def decoded_lines(data: bytes, decoder: msgspec.json.Decoder[Any], counts: Counts) -> list[Any]:
    """Decode lines of JSON; bad ones are counted."""
    try:
        _check_text(data)
        return decoder.decode_lines(data)
    except UNDECODABLE:
        return [record for line in data.splitlines() if line.strip() for record in decoded(line, decoder, counts)]


def decoded(line: bytes, decoder: msgspec.json.Decoder[Any], counts: Counts) -> Iterator[Any]:
    """Yield a JSON record; a bad one is counted instead."""
    try:
        _check_text(line)
        yield decoder.decode(line)
    except UNDECODABLE as error:
        counts.note_bad(error, line)


def _check_text(data: bytes) -> None:
    """Raise for text that is not UTF-8; the decoder does not check raw values."""
    if not data.isascii():
        data.decode()


def number_of(*parts: object) -> int:
    """Return a 64-bit id that depends only on the parts, and is never 0."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") or 1


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:60]
