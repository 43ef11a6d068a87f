"""Durations and sizes are spelled as on the page, whose tests read the same cases."""

from __future__ import annotations

import doctest
import json
import math
from pathlib import Path

import pytest

from rl_insight import words
from rl_insight.words import duration_text, seconds_text, size_text

CASES = json.loads((Path(__file__).parents[2] / "web" / "src" / "unitCases.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("nanoseconds", "text"), CASES["durations"])
def test_durations_are_spelled_as_on_the_page(nanoseconds, text):
    assert duration_text(nanoseconds) == text


@pytest.mark.parametrize(("size", "text"), CASES["sizes"])
def test_sizes_are_spelled_as_on_the_page(size, text):
    assert size_text(size) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_is_unknown(value):
    assert {duration_text(value), seconds_text(value), size_text(value)} == {"\u2013"}


def test_examples_in_docstrings_hold():
    assert doctest.testmod(words).failed == 0
