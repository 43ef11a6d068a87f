"""The examples in the docstrings are correct."""

from __future__ import annotations

import doctest

import pytest

from rl_insight.diagnosis import activity, names, path_walk, robust
from rl_insight.store.queries import step_counters, step_definition


@pytest.mark.parametrize(
    "module",
    [activity, names, path_walk, robust, step_counters, step_definition],
    ids=lambda module: module.__name__,
)
def test_examples(module):
    assert doctest.testmod(module).failed == 0
