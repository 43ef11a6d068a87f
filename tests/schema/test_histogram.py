import math
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.schema.histogram import bucket_code, lower_bound, middle, quantile, upper_bound

FINITE = st.floats(allow_nan=False, allow_infinity=False)
POSITIVE = st.floats(min_value=1e-300, max_value=1e300)
EXTREMES = [5e-324, 1e-310, sys.float_info.min, 1.7e308, sys.float_info.max]
ROUNDING = 1 + 1e-12
"""A value at the very edge of a bucket may fall on either side of it."""


def histogram(values):
    return Counter(map(bucket_code, values))


def exact_quantile(values, q):
    ordered = sorted(values)
    return ordered[max(math.ceil(q * len(ordered)), 1) - 1]


@given(FINITE, FINITE)
def test_codes_sort_as_values_do(one, other):
    low, high = sorted((one, other))
    assert bucket_code(low) <= bucket_code(high)


@given(POSITIVE)
def test_a_value_lies_within_its_bucket(value):
    code = bucket_code(value)
    assert lower_bound(code) / ROUNDING <= value <= upper_bound(code) * ROUNDING
    assert lower_bound(-code) * ROUNDING <= -value <= upper_bound(-code) / ROUNDING


@given(FINITE)
def test_a_negative_value_mirrors_the_positive_one(value):
    assert bucket_code(-value) == -bucket_code(value)
    assert middle(bucket_code(-value)) == -middle(bucket_code(value))


@pytest.mark.parametrize("value", EXTREMES + [-value for value in EXTREMES] + [0.0, -0.0])
def test_extreme_values_have_a_bucket_with_ordered_bounds(value):
    code = bucket_code(value)
    assert -(2**31) <= code < 2**31
    assert lower_bound(code) <= middle(code) <= upper_bound(code)
    assert math.isfinite(middle(code))
    assert lower_bound(code) <= value <= upper_bound(code)


@pytest.mark.parametrize("value", [sys.float_info.min, 1e-200, 1e200, 1.7e308, sys.float_info.max])
def test_a_bucket_is_read_precisely_at_the_ends_of_the_range(value):
    assert middle(bucket_code(value)) == pytest.approx(value, rel=0.023)


def test_zero_is_a_bucket_of_its_own():
    assert bucket_code(0.0) == bucket_code(-0.0) == 0
    assert (lower_bound(0), middle(0), upper_bound(0)) == (0.0, 0.0, 0.0)


@given(st.lists(POSITIVE, min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_within_the_promised_error(values, q):
    assert quantile(histogram(values), q) == pytest.approx(exact_quantile(values, q), rel=0.023)


@given(st.lists(st.sampled_from([0.0]) | POSITIVE | POSITIVE.map(lambda v: -v), min_size=1), st.floats(0, 1))
def test_negatives_and_zeros_take_part_in_quantiles(values, q):
    assert quantile(histogram(values), q) == pytest.approx(exact_quantile(values, q), rel=0.023)


@given(st.lists(FINITE, max_size=20), st.lists(FINITE, max_size=20))
def test_merged_histograms_are_the_histogram_of_all_values(some, others):
    assert histogram(some) + histogram(others) == histogram(some + others)


def test_an_empty_histogram_has_no_quantile():
    assert quantile({}, 0.5) is None
    assert quantile({32767: 0}, 0.5) is None


def test_buckets_without_values_do_not_count():
    assert quantile({bucket_code(1.0): 0, bucket_code(8.0): 1, bucket_code(99.0): 0}, 0.0) == pytest.approx(
        8, rel=0.023
    )
    assert quantile({bucket_code(1.0): 0, bucket_code(8.0): 1, bucket_code(99.0): 0}, 1.0) == pytest.approx(
        8, rel=0.023
    )
