"""Integers in any notation, and JSON that is nested too deeply."""

from __future__ import annotations

import pytest

from rl_insight.schema.json_values import MAX_JSON_DEPTH, is_too_deep, whole_number
from rl_insight.schema.records import UNREADABLE, read_object


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (7, 7),
        ("7", 7),
        ("-7", -7),
        (7.0, 7),
        ("7.0", 7),
        ("1e3", 1000),
        ("9007199254740993", 2**53 + 1),
        (2**56 - 1, 2**56 - 1),
        (1 - 2**56, 1 - 2**56),
        ("--7", None),
        ("-", None),
        ("", None),
        ("7.5", None),
        (7.5, None),
        (float("nan"), None),
        (float("inf"), None),
        (True, None),
        (None, None),
        (2**56, None),
        (-(2**56), None),
        (1e300, None),
        ("9" * 5000, None),
        ([7], None),
    ],
)
def test_a_whole_number_is_read_or_left_out(value, number):
    assert whole_number(value) == number


@pytest.mark.parametrize("extra", [0, 1])
def test_attributes_are_read_up_to_the_depth_that_a_receiver_admits(extra):
    depth = MAX_JSON_DEPTH + extra
    text = '{"a":' * depth + "1" + "}" * depth
    assert is_too_deep(text) is bool(extra)
    assert (read_object(text) == {UNREADABLE: text}) is bool(extra)
