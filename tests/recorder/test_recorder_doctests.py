from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import rl_insight.recorder
from rl_insight.recorder.spans import NO_SPAN

MODULES = [
    "rl_insight",
    "rl_insight.testing",
    "rl_insight.monitor",
    "rl_insight.producer",
    "rl_insight.startup",
    "rl_insight.logging_handler",
    *(f"rl_insight.recorder.{module.name}" for module in pkgutil.iter_modules(rl_insight.recorder.__path__)),
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name, insight_capture):
    module = importlib.import_module(name)
    public = {name: getattr(rl_insight, name) for name in rl_insight.__all__}
    results = doctest.testmod(module, globs={**public, **vars(module)})
    assert results.failed == 0


def test_the_placeholder_of_a_span_accepts_every_public_call_of_a_span():
    from rl_insight.recorder.spans import Span

    public = {name for name in vars(Span) if not name.startswith("_") and callable(getattr(Span, name))}
    assert public - {"fail"} <= {name for name in dir(NO_SPAN) if not name.startswith("_")}
