"""Fixtures of the schema tests."""

import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest

from rl_insight.schema import BatchBuilder, Process

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def golden_script():
    """The script that writes the golden files, as a module."""
    loader = SourceFileLoader("make_golden", str(ROOT / "scripts" / "make-golden"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_golden", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def process():
    return Process(process_id="p-1", run_id="run", host="host", pid=1)


@pytest.fixture
def builder():
    return BatchBuilder()
