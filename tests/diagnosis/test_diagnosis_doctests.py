"""The examples in the docstrings are correct."""

from __future__ import annotations

import doctest

import pytest

from rl_insight.diagnosis import activity, critical_path, names, robust


@pytest.mark.parametrize("module", [activity, critical_path, names, robust], ids=lambda module: module.__name__)
def test_examples(module):
    assert doctest.testmod(module).failed == 0
