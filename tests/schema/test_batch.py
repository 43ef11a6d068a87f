import copy
import json
import struct
from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.errors import SchemaError, UnsupportedVersionError
from rl_insight.schema import NO_STEP, OPEN, VERSION, BatchBuilder, Loss, Process, decode, encode, records
from rl_insight.schema.records import record_json

HOSTILE = ["", "\x00", "\ud800", "a\udfffb", "\U0001f680", "</script>", "\u2028\r\n\t", '"\\', "é" * 1000, "__proto__"]
HOSTILE_TEXTS = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=()))
OPTIONAL_TEXTS = st.none() | HOSTILE_TEXTS
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, -1, 0])
UINT64 = st.integers(0, 2**64 - 1) | st.sampled_from([0, 2**63, 2**64 - 1])
STEPS = st.none() | st.integers(NO_STEP + 1, 2**63 - 1)
FLOATS = st.floats()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | INT64 | UINT64 | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
ATTRIBUTES = st.dictionaries(st.text(), JSON_VALUES, max_size=4)
WHERE = {
    "span_id": UINT64,
    "trace": st.tuples(UINT64, UINT64),
    "lane": OPTIONAL_TEXTS,
    "step": STEPS,
    "session_id": OPTIONAL_TEXTS,
    "attributes": ATTRIBUTES,
}
SPANS = st.fixed_dictionaries(
    {
        **WHERE,
        "name": HOSTILE_TEXTS,
        "start_ns": INT64,
        "duration_ns": st.just(OPEN) | st.integers(0, 2**63 - 1),
        "parent_id": UINT64,
        "segment": HOSTILE_TEXTS,
        "status": HOSTILE_TEXTS,
        "error": OPTIONAL_TEXTS,
    }
)
EVENTS = st.fixed_dictionaries({**WHERE, "time_ns": INT64, "name": HOSTILE_TEXTS})
LOGS = st.fixed_dictionaries(
    {**WHERE, "time_ns": INT64, "level": INT64, "message": HOSTILE_TEXTS, "logger": OPTIONAL_TEXTS}
)


def carried(text):
    """A string after a round trip through UTF-8, which may not be able to encode it."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()


def trip(builder, process, **extra):
    return decode(encode(builder.build(process, sequence=1, sent_ns=2, **extra)))


def with_json(row):
    return {**row, "attributes": msgspec.json.encode(row["attributes"]).decode()}


def same_place(record, row, missing_span=None):
    high, low = row["trace"]
    assert record.lane == carried(row["lane"])
    assert record.step == row["step"]
    assert record.session_id == carried(row["session_id"])
    assert record.attributes == row["attributes"]
    if missing_span is None or row["span_id"]:
        assert int(record.span_id, 16) == row["span_id"]
    assert int(record.trace_id or "0", 16) == (high << 64) + low


@given(spans=st.lists(SPANS, max_size=3), events=st.lists(EVENTS, max_size=3), logs=st.lists(LOGS, max_size=3))
def test_spans_events_and_logs_survive_the_wire(process, spans, events, logs):
    builder = BatchBuilder()
    for row in spans:
        builder.add_span(**with_json(row))
    for row in events:
        builder.add_event(**with_json(row))
    for row in logs:
        builder.add_log(**with_json(row))

    found = list(records(trip(builder, process)))

    assert len(found) == len(builder) == len(spans) + len(events) + len(logs)
    for record, row in zip(found, spans + events + logs, strict=True):
        same_place(record, row, missing_span=0)
        for field in ("name", "segment", "status", "error", "message", "logger"):
            if field in row:
                assert getattr(record, field) == carried(row[field])
        for field in ("start_ns", "time_ns", "level"):
            if field in row:
                assert getattr(record, field) == row[field]
        if "duration_ns" in row:
            assert record.duration_ns == (None if row["duration_ns"] == OPEN else row["duration_ns"])
            assert int(record.parent_id or "0", 16) == row["parent_id"]
        assert json.loads(record_json(record))["type"] in {"span", "event", "log"}


@given(
    name=HOSTILE_TEXTS,
    documentation=HOSTILE_TEXTS,
    labels=st.dictionaries(st.text(), st.text(), max_size=3),
    samples=st.lists(st.tuples(INT64, FLOATS, STEPS), max_size=4),
    histograms=st.lists(
        st.tuples(UINT64, FLOATS, st.dictionaries(st.integers(-(2**31), 2**31 - 1), UINT64, max_size=4)), max_size=3
    ),
)
def test_metrics_survive_the_wire_bit_by_bit(process, name, documentation, labels, samples, histograms):
    builder = BatchBuilder()
    series = builder.add_series(name, "gauge", documentation, msgspec.json.encode(labels).decode())
    for time_ns, value, step in samples:
        builder.add_sample(series, time_ns=time_ns, value=value, step=step)
    for count, total, buckets in histograms:
        builder.add_histogram(
            series, time_ns=1, count=count, total=total, minimum=total, maximum=total, buckets=buckets
        )

    found = list(records(trip(builder, process)))

    for record in found:
        assert (record.metric, record.documentation, record.labels) == (carried(name), carried(documentation), labels)
    for record, (time_ns, value, step) in zip(found[: len(samples)], samples, strict=True):
        assert (record.time_ns, record.step) == (time_ns, step)
        assert struct.pack("<d", record.value) == struct.pack("<d", value)
    for record, (count, total, buckets) in zip(found[len(samples) :], histograms, strict=True):
        assert (record.count, record.buckets) == (count, buckets)
        for number in (record.sum, record.min, record.max):
            assert struct.pack("<d", number) == struct.pack("<d", total)


@given(text=HOSTILE_TEXTS, number=INT64, reason=HOSTILE_TEXTS)
def test_the_process_and_its_losses_survive_the_wire(text, number, reason):
    process = Process(
        process_id=text, run_id=text, host=text, pid=1, role=text, rank=number, labels={text: text}, started_ns=number
    )
    builder = BatchBuilder()
    builder.add_event(time_ns=number, name="kept")

    batch = trip(builder, process, losses=[Loss("spans", reason, 3)], final=True)

    shown = carried(text)
    assert batch.process == Process(
        process_id=shown,
        run_id=shown,
        host=shown,
        pid=1,
        role=shown,
        rank=number,
        labels={shown: shown},
        started_ns=number,
    )
    assert batch.losses == [Loss("spans", carried(reason), 3)]
    assert batch.final
    assert batch.events.column("time_ns").tolist() == [number]


def test_an_empty_batch_has_no_records(builder, process):
    batch = trip(builder, process)
    assert list(records(batch)) == []
    assert (batch.sequence, batch.sent_ns, batch.final, batch.version) == (1, 2, False, VERSION)


def test_large_attributes_are_carried_whole(builder, process):
    attributes = {"text": "\U0001f680" * 16384, "ascii": "a" * 65536}
    builder.add_event(time_ns=1, name="big", attributes=msgspec.json.encode(attributes).decode())
    assert next(records(trip(builder, process))).attributes == attributes


def test_a_repeated_text_is_carried_once(builder, process):
    for _ in range(100):
        builder.add_event(time_ns=1, name="the same name")
    assert trip(builder, process).strings == ["the same name"]


@pytest.mark.parametrize(
    "text", ["", "not json", "[1]", "3", '{"a":NaN}', '{"a":1e999}', '{"a":"\\ud800"}', "[" * 9999]
)
def test_attributes_that_are_not_an_object_are_kept_as_text(builder, process, text):
    builder.add_event(time_ns=1, name="foreign", attributes=text)
    builder.add_event(time_ns=1, name="good", attributes='{"a":1}')
    foreign, good = records(trip(builder, process))
    assert foreign.attributes == ({"unreadable": text} if text else {})
    assert good.attributes == {"a": 1}


@pytest.mark.parametrize(("text", "labels"), [('{"rank":1}', {"rank": "1"}), ("[1]", {"unreadable": "[1]"}), ("", {})])
def test_labels_become_text(builder, process, text, labels):
    builder.add_sample(builder.add_series("m", "gauge", "", text), time_ns=1, value=1.0)
    assert next(records(trip(builder, process))).labels == labels


# Bad input


@pytest.fixture(scope="module")
def payload(golden_script):
    return encode(golden_script.golden_batch())


@pytest.fixture
def content(payload):
    """A valid batch as plain data, to be corrupted."""
    return copy.deepcopy(msgspec.msgpack.decode(payload))


def column(code, *values):
    return array(code, values).tobytes()


def test_every_truncation_is_refused(payload):
    for length in range(len(payload)):
        with pytest.raises(SchemaError):
            decode(payload[:length])


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(noise):
    with pytest.raises(SchemaError):
        decode(noise)


@given(data=st.data())
def test_a_damaged_batch_is_refused_or_readable_to_the_end(payload, data):
    damaged = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        batch = decode(bytes(damaged))
    except SchemaError:
        return
    for record in records(batch):
        record_json(record)


@pytest.mark.parametrize(
    "noise",
    [b"", b"\x00", b"\xc1", b"{}", b"\x80", b"null", b"\x81\xa1x" + b"\x91" * 100_000, b"\xdf\xff\xff\xff\xff"],
    ids=["empty", "number", "reserved byte", "json", "empty map", "text", "deep nesting", "huge map"],
)
def test_bytes_that_are_not_a_batch_are_refused(noise):
    with pytest.raises(SchemaError, match="not a batch"):
        decode(noise)


def test_text_that_is_not_utf8_is_refused(payload):
    with pytest.raises(SchemaError, match="not a batch"):
        decode(payload.replace(b"generate", b"generat\xff"))


def test_trailing_bytes_are_refused(payload):
    with pytest.raises(SchemaError, match="not a batch"):
        decode(payload + b"\x00")


CORRUPTED = {
    "a column one row short": (("spans", "name"), column("I", 1, 1), "spans.name has 8 bytes, not 3 rows"),
    "a column one row long": (("events", "step"), column("q", 1, 1, 1), "events.step has 24 bytes, not 2 rows"),
    "a column with half a number": (("samples", "value"), b"\x00" * 63, "samples.value has 63 bytes"),
    "a first column with half a number": (("logs", "time_ns"), b"\x00" * 9, "logs.time_ns has 9 bytes"),
    "a missing column": (("logs", "message"), b"", "logs.message has 0 bytes"),
    "a text past the end": (("events", "name"), column("I", 1, 10_000), "events.name points at entry 10000"),
    "a series past the end": (("histograms", "series"), column("I", 3), "histograms.series points at entry 3"),
    "too many buckets claimed": (("histograms", "buckets"), column("I", 6), "claim 6 buckets, but the batch has 5"),
    "too few buckets claimed": (("histograms", "buckets"), column("I", 4), "claim 4 buckets, but the batch has 5"),
    "no strings": (("strings",), [], "points at entry"),
    "strings of another type": (("strings",), [1], "not a batch"),
    "a column of another type": (("spans", "name"), 7, "not a batch"),
    "a table of another type": (("spans",), [], "not a batch"),
    "a process without a run": (("process", "run_id"), None, "not a batch"),
    "a sequence that is text": (("sequence",), "1", "not a batch"),
    "a version with one part": (("version",), [1], "not a batch"),
    "a version that is text": (("version",), "1.0", "not a batch"),
}


@pytest.mark.parametrize(("path", "value", "message"), CORRUPTED.values(), ids=CORRUPTED.keys())
def test_contradictions_are_refused_and_named(content, path, value, message):
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(SchemaError, match=message):
        decode(msgspec.msgpack.encode(content))


def test_samples_without_any_series_are_refused(content):
    content["series"] = {}
    with pytest.raises(SchemaError, match=r"samples\.series points at"):
        decode(msgspec.msgpack.encode(content))


# Versions


@pytest.mark.parametrize("version", [[0, 9], [2, 0], [99, 0]])
def test_another_major_version_is_refused_by_a_message_that_names_both(content, version):
    content["version"] = version
    with pytest.raises(UnsupportedVersionError, match=rf"version {version[0]}\.x .* version {VERSION[0]}\.x"):
        decode(msgspec.msgpack.encode(content))


def test_another_major_version_is_recognized_whatever_else_changed():
    with pytest.raises(UnsupportedVersionError):
        decode(msgspec.msgpack.encode({"version": [2, 0], "process": 3, "spans": "different"}))


def test_a_newer_minor_version_with_unknown_fields_is_read(content, payload):
    content["version"] = [VERSION[0], VERSION[1] + 7]
    content["novelty"] = {"deep": [1, 2]}
    content["process"]["mood"] = "good"
    content["spans"]["links"] = b"\x00" * 5
    newer = decode(msgspec.msgpack.encode(content))
    assert list(map(record_json, records(newer))) == list(map(record_json, records(decode(payload))))


def test_an_older_minor_version_with_missing_fields_is_read():
    process = {"process_id": "p", "run_id": "r", "host": "h", "pid": 1}
    old = {"version": [1, 0], "process": process, "sequence": 1, "sent_ns": 5}
    batch = decode(msgspec.msgpack.encode(old))
    assert batch.process == Process(**process)
    assert not batch.final
    assert list(records(batch)) == []
