"""A batch row by row: the documented JSON form of every event.

Columns are for machines; records are for files that people read, for tests and for documentation. The machine-readable
schema in `docs/events.schema.json` is generated from these classes.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isfinite
from typing import Any

import msgspec

from rl_insight.schema.batch import NO_STEP, Batch, Events, Logs


class Record(msgspec.Struct, omit_defaults=True, kw_only=True, tag_field="type"):
    """Base of the records; `type` names the kind."""

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
    """Wall-clock nanoseconds since 1970, by the process's own clock."""
    duration_ns: int | None = None
    """Monotonic; absent while the span is open."""
    segment: str
    """`duration`, `state_interval`, `state_nested`, or a kind of an adapter's own."""
    lane: str | None = None
    """Absent: the process's own lane."""
    status: str
    """`ok`, `error`, `cancelled`; `open` while it runs."""
    error: str | None = None
    """The exception's type."""
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
    """A session as its owner last told; its phases are spans of the segment `phase` with the same session id."""

    session_id: str
    task_id: str | None = None
    status: str
    """`pending`, `accepted`, `rejected`, `failed`, `dropped`, `cancelled` or `lost`."""
    time_ns: int
    """When the snapshot was taken: of several, the newest counts."""
    record: dict[str, Any] = {}
    """See `rl_insight.schema.sessions.Snapshot`."""


class SampleRecord(Record, kw_only=True, tag="sample"):
    """A gauge's value, or a counter's total since its process started."""

    metric: str
    kind: str
    labels: dict[str, str] = {}
    documentation: str = ""
    time_ns: int
    value: float | str
    """In JSON, values that JSON lacks are the strings `NaN`, `Infinity` and `-Infinity`."""
    step: int | None = None


class HistogramRecord(Record, kw_only=True, tag="histogram"):
    """A distribution since its process started."""

    metric: str
    labels: dict[str, str] = {}
    documentation: str = ""
    time_ns: int
    count: int
    sum: float | str
    """Like `min` and `max` spelled as a sample's value: a sum of finite values may be infinite."""
    min: float | str
    max: float | str
    buckets: dict[int, int]
    """Bucket code (see `rl_insight.schema.histogram`) to count."""
    step: int | None = None


class LossRecord(Record, kw_only=True, tag="loss"):
    """What a process has lost since it started."""

    kind: str
    reason: str
    count: int


class ProcessRecord(Record, kw_only=True, tag="process"):
    """Who recorded; stands before the first record of a process."""

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


RECORD_TYPES = (
    SpanRecord,
    EventRecord,
    LogRecord,
    SessionSnapshot,
    SampleRecord,
    HistogramRecord,
    LossRecord,
    ProcessRecord,
)

UNREADABLE = "unreadable"
"""The key under which attributes or labels that cannot be read are kept, as text."""

_encoder = msgspec.json.Encoder()
_object_decoder = msgspec.json.Decoder(dict[str, Any])
_labels_decoder = msgspec.json.Decoder(dict[str, str])


def records(batch: Batch) -> Iterator[Record]:
    """Yield everything in a batch but the process itself, record by record."""
    yield from _spans(batch)
    yield from _events(batch)
    yield from _logs(batch)
    yield from _sessions(batch)
    yield from _samples(batch)
    yield from _histograms(batch)
    for loss in batch.losses:
        yield LossRecord(process_id=batch.process.process_id, kind=loss.kind, reason=loss.reason, count=loss.count)


def process_record(batch: Batch) -> ProcessRecord:
    """Return the record of the process that made a batch."""
    return ProcessRecord(**msgspec.structs.asdict(batch.process))


def record_json(record: Record) -> bytes:
    """Return a record as one line of JSON, without the line end."""
    special = {
        name: _SPECIAL.get(number, "NaN")
        for name in _FLOAT_FIELDS.get(type(record), ())
        if isinstance(number := getattr(record, name), float) and not isfinite(number)
    }
    return _encoder.encode(msgspec.structs.replace(record, **special) if special else record)


_FLOAT_FIELDS: dict[type[Record], tuple[str, ...]] = {
    SampleRecord: ("value",),
    HistogramRecord: ("sum", "min", "max"),
}
_SPECIAL = {float("inf"): "Infinity", float("-inf"): "-Infinity"}


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a record."""
    references, definitions = msgspec.json.schema_components(RECORD_TYPES, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "RL-Insight event, schema v1",
        "oneOf": list(references),
        "$defs": definitions,
    }


def _object(text: str | None) -> dict[str, Any]:
    return _read(_object_decoder, text)


def _labels(text: str | None) -> dict[str, str]:
    return _read(_labels_decoder, text)


def _read(decoder: msgspec.json.Decoder[dict[str, Any]], text: str | None) -> dict[str, Any]:
    """Read the text of a JSON object; text that is none, from a foreign producer, is kept as it is."""
    if not text:
        return {}
    try:
        return decoder.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {UNREADABLE: text}


def _hex(number: int) -> str | None:
    return f"{number:016x}" if number else None


def _trace(high: int, low: int) -> str | None:
    return f"{high:016x}{low:016x}" if high or low else None


def _rows(table: Any) -> Iterator[tuple[Any, ...]]:
    return zip(*(table.column(name).tolist() for name in table.TYPES), strict=True)


def _spans(batch: Batch) -> Iterator[SpanRecord]:
    text = batch.text
    for row in _rows(batch.spans):
        (
            span_id,
            high,
            low,
            parent,
            name,
            start,
            duration,
            segment,
            lane,
            status,
            error,
            step,
            session,
            attributes,
        ) = row
        yield SpanRecord(
            process_id=batch.process.process_id,
            span_id=f"{span_id:016x}",
            trace_id=f"{high:016x}{low:016x}",
            parent_id=_hex(parent),
            name=text(name) or "",
            start_ns=start,
            duration_ns=None if duration < 0 else duration,
            segment=text(segment) or "",
            lane=text(lane),
            status=text(status) or "",
            error=text(error),
            step=None if step == NO_STEP else step,
            session_id=text(session),
            attributes=_object(text(attributes)),
        )


def _where(batch: Batch, row: tuple[Any, ...]) -> dict[str, Any]:
    """Return the fields that events and logs share; they are the last seven columns of both."""
    span_id, high, low, lane, step, session, attributes = row
    return {
        "process_id": batch.process.process_id,
        "span_id": _hex(span_id),
        "trace_id": _trace(high, low),
        "lane": batch.text(lane),
        "step": None if step == NO_STEP else step,
        "session_id": batch.text(session),
        "attributes": _object(batch.text(attributes)),
    }


def _events(batch: Batch) -> Iterator[EventRecord]:
    events: Events = batch.events
    for time_ns, name, *where in _rows(events):
        yield EventRecord(time_ns=time_ns, name=batch.text(name) or "", **_where(batch, tuple(where)))


def _logs(batch: Batch) -> Iterator[LogRecord]:
    logs: Logs = batch.logs
    for time_ns, level, logger, message, *where in _rows(logs):
        yield LogRecord(
            time_ns=time_ns,
            level=level,
            logger=batch.text(logger),
            message=batch.text(message) or "",
            **_where(batch, tuple(where)),
        )


def _sessions(batch: Batch) -> Iterator[SessionSnapshot]:
    text = batch.text
    for session_id, task_id, status, time_ns, record in _rows(batch.sessions):
        yield SessionSnapshot(
            process_id=batch.process.process_id,
            session_id=text(session_id) or "",
            task_id=text(task_id),
            status=text(status) or "",
            time_ns=time_ns,
            record=_object(text(record)),
        )


def _series(batch: Batch) -> list[tuple[str, str, str, dict[str, str]]]:
    text = batch.text
    return [
        (text(name) or "", text(kind) or "", text(documentation) or "", _labels(text(labels)))
        for name, kind, documentation, labels in _rows(batch.series)
    ]


def _samples(batch: Batch) -> Iterator[SampleRecord]:
    series = _series(batch)
    for position, time_ns, value, step in _rows(batch.samples):
        name, kind, documentation, labels = series[position]
        yield SampleRecord(
            process_id=batch.process.process_id,
            metric=name,
            kind=kind,
            labels=labels,
            documentation=documentation,
            time_ns=time_ns,
            value=value,
            step=None if step == NO_STEP else step,
        )


def _histograms(batch: Batch) -> Iterator[HistogramRecord]:
    series = _series(batch)
    buckets = _rows(batch.buckets)
    for position, time_ns, step, count, total, minimum, maximum, length in _rows(batch.histograms):
        name, _, documentation, labels = series[position]
        yield HistogramRecord(
            process_id=batch.process.process_id,
            metric=name,
            labels=labels,
            documentation=documentation,
            time_ns=time_ns,
            count=count,
            sum=total,
            min=minimum,
            max=maximum,
            buckets=dict(next(buckets) for _ in range(length)),
            step=None if step == NO_STEP else step,
        )
