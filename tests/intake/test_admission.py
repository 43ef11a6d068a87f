"""The limits of a batch, checked once on entry."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.errors import SchemaError
from rl_insight.intake import MAX_LOSS_COUNT, Admission
from rl_insight.intake.admission import MAX_TIME_NS
from rl_insight.schema import NO_STEP, BatchBuilder, Loss, Process, decode, encode, records
from rl_insight.schema.tables import STEP_LIMIT

NOW = 1_700_000_000_000_000_000
HUGE = 2**63 - 1
DEEP = '{"a":' * 5_000 + "1" + "}" * 5_000


def build(builder=None, *, sequence=1, sent_ns=NOW, losses=(), **process):
    who = Process(**{"process_id": "p", "run_id": "r", "host": "node7", "pid": 1} | process)
    return (builder or BatchBuilder()).build(who, sequence=sequence, sent_ns=sent_ns, losses=losses)


def admit(batch):
    admitted = Admission().admit(batch)
    assert decode(encode(admitted)).strings == admitted.strings  # it is still a batch
    return admitted


def span(builder, **fields):
    builder.add_span(**{"span_id": 1, "trace": (0, 1), "name": "a", "start_ns": NOW, "duration_ns": 1} | fields)


def test_a_good_batch_is_passed_on_as_it_is():
    builder = BatchBuilder()
    span(builder, duration_ns=-1)
    span(builder, step=7, attributes='{"text": "' + "[" * 1_000 + '"}')
    builder.add_sample(builder.add_series("m", "gauge", "", "{}"), time_ns=0, value=1.0)
    batch = build(builder)
    assert Admission().admit(batch) is batch


@pytest.mark.parametrize(
    "bad",
    [
        {"start_ns": HUGE},
        {"start_ns": -HUGE},
        {"start_ns": MAX_TIME_NS},
        {"duration_ns": HUGE},
        {"duration_ns": -HUGE},
        {"step": HUGE},
    ],
)
def test_spans_out_of_range_are_left_out_and_counted_and_the_others_kept(bad):
    builder = BatchBuilder()
    span(builder, name="before")
    span(builder, **bad)
    span(builder, name="after")
    admission = Admission()
    kept = admission.admit(build(builder))
    assert [record.name for record in records(kept) if record.__struct_config__.tag == "span"] == ["before", "after"]
    assert kept.losses == [Loss("spans", "range", 1)]
    assert admission.admit(build(builder, sequence=2)).losses == [Loss("spans", "range", 2)]


def test_every_table_is_checked():
    builder = BatchBuilder()
    gauge, histogram = (builder.add_series(kind, kind, "", "{}") for kind in ("gauge", "histogram"))
    for time_ns in (NOW, HUGE, NOW + 1):
        builder.add_event(time_ns=time_ns, name="e")
        builder.add_log(time_ns=time_ns, level=20, logger="l", message="m")
        builder.add_session(session_id="s", task_id=None, status="pending", time_ns=time_ns, record="{}")
        builder.add_sample(gauge, time_ns=time_ns, value=1.0)
        builder.add_histogram(
            histogram, time_ns=time_ns, count=3, total=3.0, minimum=0.0, maximum=2.0, buckets={1: 1, time_ns % 7: 2}
        )
    kept = admit(build(builder))
    times = [record.time_ns for record in records(kept) if hasattr(record, "time_ns")]
    assert times == [NOW, NOW + 1] * 5
    buckets = [record.buckets for record in records(kept) if record.__struct_config__.tag == "histogram"]
    assert buckets == [{1: 1, NOW % 7: 2}, {1: 1, (NOW + 1) % 7: 2}]
    kinds = ("events", "logs", "sessions", "samples", "histograms")
    assert kept.losses == [Loss(kind, "range", 1) for kind in kinds]


@given(st.lists(st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(NOW, NOW + 10)), max_size=30))
def test_what_is_kept_is_exactly_what_is_in_range(times):
    builder = BatchBuilder()
    for time_ns in times:
        builder.add_event(time_ns=time_ns, name="e")
    kept = admit(build(builder)).events.column("time_ns").tolist()
    assert kept == [time_ns for time_ns in times if -(2**56) <= time_ns < MAX_TIME_NS]


def test_steps_below_the_limit_are_kept():
    builder = BatchBuilder()
    for step in (STEP_LIMIT - 1, 1 - STEP_LIMIT, STEP_LIMIT):
        span(builder, step=step)
    assert admit(build(builder)).spans.column("step").tolist() == [STEP_LIMIT - 1, 1 - STEP_LIMIT]


def test_rows_without_a_step_are_kept():
    builder = BatchBuilder()
    span(builder)
    assert admit(build(builder)).spans.column("step").tolist() == [NO_STEP]


@pytest.mark.parametrize("table", ["span", "event", "log", "session", "series"])
def test_attributes_nested_too_deeply_become_readable_and_the_row_is_kept(table):
    builder = BatchBuilder()
    if table == "span":
        span(builder, attributes=DEEP)
    elif table == "event":
        builder.add_event(time_ns=NOW, name="e", attributes=DEEP)
    elif table == "log":
        builder.add_log(time_ns=NOW, level=20, logger="l", message="m", attributes=DEEP)
    elif table == "session":
        builder.add_session(session_id="s", task_id=None, status="pending", time_ns=NOW, record=DEEP)
    else:
        builder.add_sample(builder.add_series("m", "gauge", "", DEEP), time_ns=NOW, value=1.0)
    kept = admit(build(builder))
    assert DEEP not in kept.strings
    (text,) = [text for text in kept.strings if text.startswith("{")]
    assert json.loads(text) == {"unreadable": DEEP[:1_000]}


def test_a_message_that_looks_like_deep_json_is_left_alone():
    builder = BatchBuilder()
    builder.add_log(time_ns=NOW, level=20, logger="l", message=DEEP)
    batch = build(builder)
    assert Admission().admit(batch) is batch


@pytest.mark.parametrize(("count", "kept"), [(HUGE, MAX_LOSS_COUNT), (-5, 0), (2**100, MAX_LOSS_COUNT), (7, 7)])
def test_losses_are_bounded(count, kept):
    assert Admission().admit(build(losses=[Loss("spans", "buffer", count)])).losses == [Loss("spans", "buffer", kept)]


@pytest.mark.parametrize(
    ("heartbeat_s", "kept"), [(1e308, 86_400.0), (float("inf"), 86_400.0), (0.0, 0.1), (-1.0, 0.1), (5.0, 5.0)]
)
def test_heartbeats_are_bounded(heartbeat_s, kept):
    assert Admission().admit(build(heartbeat_s=heartbeat_s)).process.heartbeat_s == kept


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"sequence": 0}, "sequence 0"),
        ({"sequence": -3}, "sequence -3"),
        ({"sequence": 2**63}, "sequence 9223372036854775808"),
        ({"process_id": ""}, "no id"),
        ({"run_id": ""}, "1 to 500 characters"),
        ({"run_id": "x" * 501}, "1 to 500 characters"),
        ({"sent_ns": 2**62}, r"check the clock of host 'node7'"),
        ({"sent_ns": -1}, r"check the clock of host 'node7'"),
        ({"pid": 2**63}, "pid 9223372036854775808"),
        ({"rank": 2**80}, "rank"),
        ({"started_ns": -(2**63) - 1}, "started_ns"),
    ],
)
def test_a_batch_of_which_nothing_can_be_stored_is_refused_with_the_reason(fields, message):
    with pytest.raises(SchemaError, match=message):
        Admission().admit(build(**fields))
