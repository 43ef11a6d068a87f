"""Buckets of other systems, and totals from any temporality."""

from itertools import accumulate
from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint as Point

from rl_insight.metrics import Distribution
from rl_insight.metrics.totals import SeriesTotal, TotalsTable, explicit_codes, exponential_counts, to_codes
from rl_insight.schema.histogram import bucket_code, lower_bound, upper_bound


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=10, unique=True).map(sorted))
def test_an_explicit_bucket_is_filed_inside_its_bounds(bounds):
    codes = explicit_codes(tuple(bounds))
    assert len(codes) == len(bounds) + 1
    assert list(codes) == sorted(codes)
    for lower, upper, code in zip(bounds, bounds[1:], codes[1:], strict=False):
        assert lower_bound(code) <= sqrt(lower * upper) * 1.0001
        assert upper_bound(code) >= sqrt(lower * upper) * 0.9999


def test_buckets_around_and_below_zero_have_codes():
    assert explicit_codes(()) == (0,)
    assert explicit_codes((-4.0, -1.0, 1.0)) == (bucket_code(-4.0), bucket_code(-2.0), 0, bucket_code(1.0) + 1)


@pytest.mark.parametrize("scale", [4, 5, 10, 20])
@given(value=st.floats(1e-6, 1e6))
def test_fine_exponential_buckets_become_ours_without_error(scale, value):
    from math import ceil, log2

    index = ceil(log2(value) * 2**scale) - 1
    point = Point(scale=scale, positive=Point.Buckets(offset=index, bucket_counts=[3]))
    (code,) = to_codes(exponential_counts(point), scale, None)
    assert lower_bound(code) <= value * 1.000001
    assert value <= upper_bound(code) * 1.000001


def test_coarse_buckets_and_negative_values_are_filed_in_the_middle():
    point = Point(
        scale=0,
        zero_count=2,
        positive=Point.Buckets(offset=3, bucket_counts=[5]),
        negative=Point.Buckets(offset=3, bucket_counts=[7]),
    )
    codes = to_codes(exponential_counts(point), 0, None)
    # The bucket from 8 to 16.
    middle = bucket_code(8 * sqrt(2)) + 1
    assert codes == {0: 2, middle: 5, -middle: 7}


@given(st.lists(st.floats(0, 1000), max_size=20))
def test_a_cumulative_counter_comes_to_its_last_total(differences):
    total = SeriesTotal()
    for value in accumulate(differences):
        total.add_cumulative(value, start_ns=1)
    assert total.value == pytest.approx(sum(differences))


def test_sources_of_one_series_are_added_and_a_restart_continues():
    total = SeriesTotal()
    for start, value in [(1, 5.0), (2, 100.0), (1, 6.0), (2, 101.0), (3, 1.0), (0, 4.0), (0, 1.0)]:
        total.add_cumulative(value, start)
    assert total.value == 6 + 101 + 1 + 4 + 1


def test_a_distribution_that_grows_coarser_keeps_every_count():
    total = SeriesTotal()
    fine = exponential_counts(Point(scale=3, positive=Point.Buckets(offset=0, bucket_counts=[1] * 8)))
    total.add_cumulative_distribution(Distribution(8, 8.0, fine), 1, 3)
    coarse = exponential_counts(Point(scale=1, positive=Point.Buckets(offset=0, bucket_counts=[5, 4])))
    total.add_cumulative_distribution(Distribution(9, 9.5, coarse), 1, 1)
    assert (total.count, total.value, sum(total.buckets().values())) == (9, 9.5, 9)


def test_a_distribution_that_begins_again_is_added():
    total = SeriesTotal()
    total.add_cumulative_distribution(Distribution(3, 3.0, {10: 3}), 1)
    total.add_cumulative_distribution(Distribution(1, 1.0, {10: 1}), 1)
    assert (total.count, total.value, total.buckets()) == (4, 4.0, {10: 4})


def test_a_difference_can_be_taken_back():
    total = SeriesTotal()
    total.add_distribution(Distribution(2, 5.0, {7: 2}))
    total.add_distribution(Distribution(1, 1.0, {7: 1})).undo()
    assert (total.count, total.value, total.buckets()) == (2, 5.0, {7: 2})


def test_counts_beyond_64_bits_stay_storable():
    total = SeriesTotal()
    for _ in range(3):
        total.add_distribution(Distribution(2**63, 0.0, {1: 2**63}))
    assert total.count == total.codes[1] == 2**63 - 1


def test_the_number_of_series_is_bounded():
    table = TotalsTable(max_series=1)
    assert table.of("a", "{}") is table.of("a", "{}")
    assert table.of("b", "{}") is None
