import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    [
        "agent_loop",
        "batch",
        "builder",
        "bundle",
        "captured_text",
        "framing",
        "histogram",
        "json_values",
        "names",
        "records",
        "tables",
    ],
)
def test_the_examples_in_the_docstrings_hold(name):
    assert doctest.testmod(importlib.import_module(f"rl_insight.schema.{name}")).failed == 0
