"""The table of past failures refers to existing tests."""

import ast
import re
from pathlib import Path

import pytest

TABLE = Path(__file__).with_name("hardening.md")
ROWS = [line.split(" | ") for line in TABLE.read_text().splitlines() if "::" in line]
IDS = sorted({name for row in ROWS for name in re.findall(r"`(tests/\S+::\w+)`", row[1])})


def test_every_row_names_a_test():
    assert len(ROWS) >= 22
    assert all("`tests/" in tests for _, tests in ROWS)


@pytest.mark.parametrize("test_id", IDS)
def test_a_named_test_exists(test_id):
    file, _, name = test_id.partition("::")
    tree = ast.parse((TABLE.parents[1] / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
