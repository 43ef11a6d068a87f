"""A batch as rows: the documented JSON form of every event.

Records are used in human-readable files, in tests and in the documentation. `docs/events.schema.json` is generated
from these classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from math import isfinite
from typing import Any

import msgspec

from rl_insight.schema.batch import Batch
from rl_insight.schema.json_values import is_too_deep, json_number, json_object
from rl_insight.schema.tables import NO_STEP, TEXT_KINDS, Table


class Record(msgspec.Struct, omit_defaults=True, kw_only=True, tag_field="type"):
    """Base class of the records; `type` names the kind."""

    process_id: str
    """The process that recorded it."""


class SpanRecord(Record, kw_only=True, tag="span"):
    """An interval: an operation, a state on a lane, a session phase."""

    span_id: str
    """16 hexadecimal digits."""
    trace_id: str
    """32 hexadecimal digits."""
    parent_id: str | None = None
    name: str
    start_ns: int
    """Nanoseconds since 1970, on the process's wall clock."""
    duration_ns: int | None = None
    """Monotonic; absent while the span is open."""
    segment: str
    """`duration`, `state_interval`, `state_nested`, or a kind defined by an adapter."""
    lane: str | None = None
    """Absent: the process's own lane."""
    status: str
    """`ok`, `error`, `cancelled` or `open`."""
    error: str | None = None
    """The exception type."""
    step: int | None = None
    session_id: str | None = None
    attributes: dict[str, Any] = {}


class EventRecord(Record, kw_only=True, tag="event"):
    """An instant."""

    time_ns: int
    name: str
    span_id: str | None = None
    trace_id: str | None = None
    lane: str | None = None
    step: int | None = None
    session_id: str | None = None
    attributes: dict[str, Any] = {}


class LogRecord(Record, kw_only=True, tag="log"):
    """A log line."""

    time_ns: int
    level: int
    """As in the `logging` module: 20 is INFO, 40 is ERROR."""
    logger: str | None = None
    message: str
    span_id: str | None = None
    trace_id: str | None = None
    lane: str | None = None
    step: int | None = None
    session_id: str | None = None
    attributes: dict[str, Any] = {}


class SessionSnapshot(Record, kw_only=True, tag="session"):
    """The owner's latest report of a session; its phases are spans of the segment `phase` with the same session id."""

    session_id: str
    task_id: str | None = None
    status: str
    """`pending`, `accepted`, `rejected`, `failed`, `dropped`, `cancelled` or `lost`."""
    time_ns: int
    """When the snapshot was taken; the latest one wins."""
    record: dict[str, Any] = {}
    """See `rl_insight.sessions.model.Snapshot`."""


class SampleRecord(Record, kw_only=True, tag="sample"):
    """A gauge's value, or a counter's total since its process started."""

    metric: str
    kind: str
    labels: dict[str, str] = {}
    documentation: str = ""
    time_ns: int
    value: float | str
    """In JSON, non-finite values are the strings `NaN`, `Infinity` and `-Infinity`."""
    step: int | None = None


class HistogramRecord(Record, kw_only=True, tag="histogram"):
    """A distribution since its process started."""

    metric: str
    labels: dict[str, str] = {}
    documentation: str = ""
    time_ns: int
    count: int
    sum: float | str
    """Like `min` and `max`, encoded as a sample's value: a sum of finite values may be infinite."""
    min: float | str
    max: float | str
    buckets: dict[int, int]
    """Bucket code (see `rl_insight.schema.histogram`) to count."""
    step: int | None = None


class LossRecord(Record, kw_only=True, tag="loss"):
    """Data a process has dropped since it started."""

    kind: str
    reason: str
    count: int


class ProcessRecord(Record, kw_only=True, tag="process"):
    """The process itself; precedes the first record of a process."""

    run_id: str
    host: str
    pid: int
    project: str = ""
    experiment_name: str = ""
    role: str = ""
    rank: int | None = None
    labels: dict[str, str] = {}
    started_ns: int = 0
    heartbeat_s: float = 5.0


RECORD_TYPES = tuple(Record.__subclasses__())
"""In the order of their definition."""

UNREADABLE = "unreadable"
"""The key under which attributes or labels that cannot be parsed are kept as text."""

_encoder = msgspec.json.Encoder()


def records(batch: Batch) -> Iterator[Record]:
    """Yield everything in a batch except the process itself."""
    process_id = batch.process.process_id
    for table, kind in ((batch.spans, SpanRecord), (batch.events, EventRecord), (batch.logs, LogRecord)):
        for fields in _values(batch, table):
            high, low = fields.pop("trace_high"), fields.pop("trace_low")
            fields["trace_id"] = None if high is None and low is None else f"{high or _ZERO}{low or _ZERO}"
            fields["attributes"] = read_object(fields["attributes"])
            fields["process_id"] = process_id
            yield kind(**fields)
    for fields in _values(batch, batch.sessions):
        fields["record"] = read_object(fields["record"])
        yield SessionSnapshot(process_id=process_id, **fields)
    yield from metric_records(batch)
    for loss in batch.losses:
        yield LossRecord(process_id=process_id, kind=loss.kind, reason=loss.reason, count=loss.count)


def process_record(batch: Batch) -> ProcessRecord:
    """Return the record of the process that made a batch."""
    return ProcessRecord(**msgspec.structs.asdict(batch.process))


def record_json(record: Record) -> bytes:
    """Return a record as one line of JSON, without a newline."""
    special = {
        name: json_number(number)
        for name in _FLOAT_FIELDS.get(type(record), ())
        if isinstance(number := getattr(record, name), float) and not isfinite(number)
    }
    return _encoder.encode(msgspec.structs.replace(record, **special) if special else record)


_FLOAT_FIELDS: dict[type[Record], tuple[str, ...]] = {
    SampleRecord: ("value",),
    HistogramRecord: ("sum", "min", "max"),
}
_ZERO = "0" * 16
_CONVERTED = frozenset({*TEXT_KINDS, "id", "step", "duration"})


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    references, definitions = msgspec.json.schema_components(RECORD_TYPES, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "RL-Insight event, schema v1",
        "oneOf": list(references),
        "$defs": definitions,
    }


def read_object(text: str | None) -> dict[str, Any]:
    """Parse a JSON object, such as attributes; any other text is kept under `UNREADABLE`.

    >>> read_object('{"tokens":9}'), read_object(None), read_object("9")
    ({'tokens': 9}, {}, {'unreadable': '9'})
    """
    if not text:
        return {}
    found = None if is_too_deep(text) else json_object(text)
    return {UNREADABLE: text} if found is None else found


def read_labels(text: str | None) -> dict[str, str]:
    """Parse the labels of a series or process; values are strings.

    >>> read_labels('{"worker":0}'), read_labels("0")
    ({'worker': '0'}, {'unreadable': '0'})
    """
    return {name: value if isinstance(value, str) else str(value) for name, value in read_object(text).items()}


def _values(batch: Batch, table: Table) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as record fields."""
    columns = table.COLUMNS
    kinds = [(name, column.kind, column.optional) for name, column in columns.items() if column.kind in _CONVERTED]
    for row in table.rows():
        fields = dict(zip(columns, row, strict=True))
        for name, kind, is_optional in kinds:
            value = fields[name]
            if kind in TEXT_KINDS:
                text = batch.text(value)
                fields[name] = text if is_optional else text or ""
            elif kind == "id":
                fields[name] = f"{value:016x}" if value or not is_optional else None
            elif (kind == "step" and value == NO_STEP) or (kind == "duration" and value < 0):
                fields[name] = None
        yield fields


def metric_records(batch: Batch) -> Iterator[SampleRecord | HistogramRecord]:
    """Yield the samples of a batch, then its histograms."""
    process_id = batch.process.process_id
    series = [
        {"metric": fields.pop("name"), **fields, "labels": read_labels(fields["labels"])}
        for fields in _values(batch, batch.series)
    ]
    for position, time_ns, value, number in batch.samples.rows():
        step = None if number == NO_STEP else number
        yield SampleRecord(process_id=process_id, **series[position], time_ns=time_ns, value=value, step=step)
    for one in series:
        del one["kind"]
    buckets = batch.buckets.rows()
    for fields in _values(batch, batch.histograms):
        fields["buckets"] = dict(islice(buckets, fields["buckets"]))
        yield HistogramRecord(process_id=process_id, **series[fields.pop("series")], **fields)
