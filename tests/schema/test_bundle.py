"""Bundles of batches: they round-trip, and inconsistent ones are rejected."""

import doctest

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.errors import SchemaError, TooLargeError, UnsupportedVersionError
from rl_insight.schema import BatchBuilder, Loss, Process, decode, encode, records
from rl_insight.schema import bundle as bundle_module
from rl_insight.schema.bundle import MAX_MEMBERS, bundle, decode_bundle, encode_bundle, is_bundle
from rl_insight.schema.tables import Samples


def make_batch(rank, sequence=1, *, spans=2, gauges=2, histograms=0, text="", final=False):
    builder = BatchBuilder()
    for number in range(spans):
        builder.add_span(
            span_id=number + 1, trace=(rank, 1), name=f"work{number}", start_ns=number, duration_ns=5, lane=text or None
        )
    for number in range(gauges):
        series = builder.add_series(f"gauge{number}", "gauge", "", f'{{"rank":"{rank}"}}')
        builder.add_sample(series, time_ns=1, value=float(rank))
    for number in range(histograms):
        series = builder.add_series(f"histogram{number}", "histogram", "", "{}")
        builder.add_histogram(
            series, time_ns=1, count=2, total=3.0, minimum=1.0, maximum=2.0, buckets={1: 1, 2 + number: 1}
        )
    process = Process(process_id=f"p{rank}", run_id="r", host="h", pid=1, rank=rank, labels={"a": text})
    return builder.build(process, sequence=sequence, sent_ns=7, final=final, losses=[Loss("spans", "full", rank)])


def content(batch):
    return (
        [msgspec.to_builtins(record) for record in records(batch)],
        batch.process,
        batch.sequence,
        batch.final,
        batch.losses,
    )


some_batches = st.lists(
    st.builds(
        make_batch,
        st.integers(0, 5),
        st.integers(1, 9),
        spans=st.integers(0, 3),
        gauges=st.integers(0, 3),
        histograms=st.integers(0, 2),
        text=st.sampled_from(["", "lane", "läne"]),
        final=st.booleans(),
    ),
    min_size=2,
    max_size=6,
)


@given(some_batches)
def test_what_goes_into_a_bundle_comes_out_of_it(batches):
    payload = encode_bundle(batches)
    assert is_bundle(payload)
    found = decode_bundle(payload).batches()
    assert list(map(content, found)) == list(map(content, batches))
    assert len({id(batch.strings) for batch in found}) == 1


def test_a_single_batch_travels_as_itself():
    batch = make_batch(0)
    assert decode(encode_bundle([batch])) == batch
    assert not is_bundle(encode(batch))


def test_a_receiver_that_does_not_know_bundles_refuses_them():
    with pytest.raises(SchemaError):
        decode(encode_bundle([make_batch(0), make_batch(1)]))


def changed(**changes):
    found = msgspec.structs.replace(bundle([make_batch(0), make_batch(1, gauges=1)]), **changes)
    return msgspec.msgpack.encode(found)


def with_rows(*rows):
    members = bundle([make_batch(0), make_batch(1)]).members
    return changed(
        members=[msgspec.structs.replace(one, rows=list(given)) for one, given in zip(members, rows, strict=True)]
    )


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        (b"", SchemaError),
        (b"\x81", SchemaError),
        (changed(version=(2, 0)), UnsupportedVersionError),
        (changed(members=[]), SchemaError),
        (changed(strings=[]), SchemaError),
        (changed(samples=Samples()), SchemaError),
        (with_rows([2, 0, 0], [2, 0, 0]), SchemaError),
        (with_rows([3, 0, 0, 0, 2, 2, 0, 0], [2, 0, 0, 0, 1, 1, 0, 0]), SchemaError),
        (with_rows([5, 0, 0, 0, 2, 2, 0, 0], [-1, 0, 0, 0, 1, 1, 0, 0]), SchemaError),
        # The second gauge of the first process becomes one of the second, which has one series only.
        (with_rows([2, 0, 0, 0, 2, 1, 0, 0], [2, 0, 0, 0, 1, 2, 0, 0]), SchemaError),
        (encode_bundle([make_batch(0, spans=0, gauges=0)] * (MAX_MEMBERS + 1)), TooLargeError),
    ],
)
def test_bad_bundles_are_refused(payload, error):
    with pytest.raises(error):
        decode_bundle(payload)


def test_buckets_are_those_that_the_members_claim():
    found = bundle([make_batch(0, histograms=1), make_batch(1, histograms=1)])
    rows = [[*one.rows[:-1], count] for one, count in zip(found.members, (1, 3), strict=True)]
    members = [msgspec.structs.replace(one, rows=given) for one, given in zip(found.members, rows, strict=True)]
    with pytest.raises(SchemaError, match="buckets"):
        decode_bundle(msgspec.msgpack.encode(msgspec.structs.replace(found, members=members)))


def test_labels_and_losses_are_bounded_over_all_members():
    process = Process(process_id="p", run_id="r", host="h", pid=1, labels={str(number): "" for number in range(6_000)})
    batches = [BatchBuilder().build(process, sequence=number, sent_ns=0) for number in (1, 2)]
    with pytest.raises(TooLargeError):
        decode_bundle(encode_bundle(batches))


def test_the_examples_in_the_docstrings_hold():
    assert doctest.testmod(bundle_module).failed == 0
