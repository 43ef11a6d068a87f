"""The examples in the docstrings are correct."""

from __future__ import annotations

import doctest

import pytest

from rl_insight.diagnosis import activity, critical_path, names, robust
from rl_insight.store.queries import step_counters, step_definition


@pytest.mark.parametrize(
    "module",
    [activity, critical_path, names, robust, step_counters, step_definition],
    ids=lambda module: module.__name__,
)
def test_examples(module):
    assert doctest.testmod(module).failed == 0
