from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

from rl_insight.hardware.quantities import QUANTITIES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("quantity", QUANTITIES.values(), ids=lambda quantity: quantity.metric)
def test_every_metric_is_documented(quantity):
    name = f"{quantity.metric}_total" if quantity.cumulative else quantity.metric
    assert f"| `{name}` |" in (ROOT / "docs" / "hardware.md").read_text()


@pytest.mark.parametrize("module", ["base", "quantities", "tracker_keys", "exposition", "exporter", "monitor"])
def test_examples_in_docstrings_run(module):
    results = doctest.testmod(importlib.import_module(f"rl_insight.hardware.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
