"""Validates every batch once, on arrival: all values must be usable by the store and its queries.

`schema.decode` has verified that the bytes are a batch. Rows with timestamps outside 1970 to 2100 are dropped and
counted as losses of their process, with the reason `range`; the rest of the batch is kept.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from threading import Lock
from typing import Any, Final, TypeVar

import msgspec

from rl_insight.errors import SchemaError
from rl_insight.intake.process import MAX_HEARTBEAT_S, MIN_HEARTBEAT_S
from rl_insight.schema import Batch, Loss, Process
from rl_insight.schema.bundle import BatchBundle
from rl_insight.schema.json_values import MAX_JSON_DEPTH, is_too_deep
from rl_insight.schema.names import MAX_RUN_ID
from rl_insight.schema.records import UNREADABLE
from rl_insight.schema.tables import TABLES, Buckets, Table

MAX_TIME_NS: Final = 0x39 << 56
"""In the year 2100: timestamps up to here can be shifted and subtracted in 64 bits."""
MAX_LOSS_COUNT: Final = 2**48
"""Sums of many such counts fit 64 bits."""

AnyTable = TypeVar("AnyTable", bound=Table)

_INT64: Final = 2**63
_RANGE: Final = "range"
_MAX_PROCESSES: Final = 10_000
_KEPT_TEXT: Final = 1_000

# A number is in range if its highest byte is one of these. Checking every eighth byte takes 2 ns per row, comparing the
# numbers 40 ns.
_ALLOWED: Final[dict[str, bytes]] = {
    "time": bytes(range(0x39)) + b"\xff",
    "duration": bytes(range(5)) + b"\xff",  # up to 11 years; below zero is an open span
    "step": b"\x00\xff\x80",  # up to 2**56; the last one is "no step"
}
_CHECKED: Final = {
    table_name: columns
    for table_name, table in TABLES.items()
    if (columns := [(name, _ALLOWED[column.kind]) for name, column in table.COLUMNS.items() if column.kind in _ALLOWED])
}
_JSON: Final = frozenset({"attributes", "record", "labels"})
_JSON_COLUMNS: Final = [
    (table_name, name) for table_name, table in TABLES.items() for name in _JSON & table.TYPES.keys()
]


class Admission:
    """Checks batches; safe to use from several threads.

    >>> from rl_insight.schema import BatchBuilder
    >>> builder = BatchBuilder()
    >>> for start_ns in (1, 2**63 - 1):
    ...     _ = builder.add_span(span_id=1, trace=(0, 1), name="a", start_ns=start_ns, duration_ns=1)
    >>> process = Process(process_id="p", run_id="r", host="h", pid=1)
    >>> admitted = Admission().admit(builder.build(process, sequence=1, sent_ns=1))
    >>> len(admitted.spans), admitted.losses
    (1, [Loss(kind='spans', reason='range', count=1)])
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._left_out: OrderedDict[str, Counter[str]] = OrderedDict()
        """Rows dropped so far, by process and kind: losses are reported as totals."""

    def admit(self, batch: Batch) -> Batch:
        """Return the batch, or a copy without the rows that cannot be stored.

        Raises:
            SchemaError: the batch cannot be stored at all.
        """
        _check_identity(batch)
        changes: dict[str, Any] = {}
        process = _bounded(batch.process)
        if process is not batch.process:
            changes["process"] = process
        left_out: Counter[str] = Counter()
        for name, columns in _CHECKED.items():
            table = getattr(batch, name)
            bad = _rows_out_of_range(table, columns)
            if bad:
                left_out[name] = len(bad)
                changes[name] = _without(table, bad)
                if name == "histograms":
                    changes["buckets"] = _buckets_without(batch, bad)
        strings = _readable_strings(batch)
        if strings is not None:
            changes["strings"] = strings
        losses = self._losses(batch, left_out)
        if losses is not None:
            changes["losses"] = losses
        return msgspec.structs.replace(batch, **changes) if changes else batch

    def admit_bundle(self, bundle: BatchBundle) -> list[Batch]:
        """Return the batches of a bundle as `admit` does, but check all columns at once.

        Raises:
            SchemaError: one of them cannot be stored. The others can be sent again separately.
        """
        batches = bundle.batches()
        is_clean = _readable_strings(bundle) is None and not any(
            _rows_out_of_range(getattr(bundle, name), columns) for name, columns in _CHECKED.items()
        )
        if not is_clean:
            return [self.admit(batch) for batch in batches]
        for batch in batches:
            _check_identity(batch)
            if _bounded(batch.process) is not batch.process or batch.losses:
                return [self.admit(one) for one in batches]
        return batches

    def _losses(self, batch: Batch, left_out: Counter[str]) -> list[Loss] | None:
        if not left_out and all(0 <= loss.count <= MAX_LOSS_COUNT for loss in batch.losses):
            return None
        losses = [Loss(loss.kind, loss.reason, min(max(loss.count, 0), MAX_LOSS_COUNT)) for loss in batch.losses]
        if not left_out:
            return losses
        process_id = batch.process.process_id
        with self._lock:
            totals = self._left_out.setdefault(process_id, Counter())
            totals.update(left_out)
            self._left_out.move_to_end(process_id)
            if len(self._left_out) > _MAX_PROCESSES:
                self._left_out.popitem(last=False)
            return losses + [Loss(kind, _RANGE, count) for kind, count in totals.items()]


def _check_identity(batch: Batch) -> None:
    process = batch.process
    if not 1 <= batch.sequence < _INT64:
        raise SchemaError(f"invalid sequence {batch.sequence}: it must be from 1 to 2**63 - 1.")
    if not process.process_id:
        raise SchemaError("not a batch: the process has no id.")
    if not 1 <= len(process.run_id) <= MAX_RUN_ID:
        raise SchemaError(f"not a batch: the run id must have 1 to {MAX_RUN_ID} characters.")
    if not 0 <= batch.sent_ns < MAX_TIME_NS:
        raise SchemaError(
            f"sent_ns {batch.sent_ns} is not a time from 1970 to 2100: check the clock of host {process.host!r}."
        )
    for name in ("pid", "rank", "started_ns"):
        number = getattr(process, name)
        if number is not None and not -_INT64 <= number < _INT64:
            raise SchemaError(f"invalid {name} {number}: it exceeds 64 bits.")


def _bounded(process: Process) -> Process:
    changes: dict[str, Any] = {}
    if not MIN_HEARTBEAT_S <= process.heartbeat_s <= MAX_HEARTBEAT_S:
        changes["heartbeat_s"] = min(max(MIN_HEARTBEAT_S, process.heartbeat_s), MAX_HEARTBEAT_S)
    if not 0 <= process.started_ns < MAX_TIME_NS:
        changes["started_ns"] = 0
    return msgspec.structs.replace(process, **changes) if changes else process


def _rows_out_of_range(table: Table, columns: list[tuple[str, bytes]]) -> set[int]:
    bad: set[int] = set()
    if not getattr(table, columns[0][0]):
        return bad
    for name, allowed in columns:
        highest: bytes = getattr(table, name)[7::8]
        if highest.translate(None, allowed):
            bad.update(row for row, byte in enumerate(highest) if byte not in allowed)
    return bad


def _without(table: AnyTable, bad: set[int]) -> AnyTable:
    kept = [row for row in range(len(table)) if row not in bad]
    rows = len(table)
    columns = {}
    for name in table.TYPES:
        raw = getattr(table, name)
        size = len(raw) // rows
        columns[name] = b"".join(raw[row * size : (row + 1) * size] for row in kept)
    return type(table)(**columns)


def _buckets_without(batch: Batch, bad: set[int]) -> Buckets:
    """Return the buckets of the remaining histograms."""
    bad_buckets: set[int] = set()
    start = 0
    for row, count in enumerate(batch.histograms.column("buckets").tolist()):
        if row in bad:
            bad_buckets.update(range(start, start + count))
        start += count
    if not bad_buckets:
        return batch.buckets
    return _without(batch.buckets, bad_buckets)


def _readable_strings(batch: Batch | BatchBundle) -> list[str] | None:
    """Return the strings with overly nested JSON replaced; None if there is none."""
    # Each level takes at least two characters, so most batches are skipped: 25 ns per string.
    if max(map(len, batch.strings), default=0) <= 2 * MAX_JSON_DEPTH:
        return None
    long = [place for place, text in enumerate(batch.strings, 1) if len(text) > 2 * MAX_JSON_DEPTH]
    suspects = [place for place in long if is_too_deep(batch.strings[place - 1])]
    if not suspects:
        return None
    tables = [(getattr(batch, table_name), column_name) for table_name, column_name in _JSON_COLUMNS]
    used = {place for table, column_name in tables if len(table) for place in table.column(column_name)}
    deep = [place for place in suspects if place in used]
    if not deep:
        return None
    strings = list(batch.strings)
    for place in deep:
        strings[place - 1] = msgspec.json.encode({UNREADABLE: strings[place - 1][:_KEPT_TEXT]}).decode()
    return strings
