"""The compatibility table refers to existing tests."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
TABLE = (Path(__file__).parent / "COVERAGE.md").read_text()
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and not line.startswith(("| row ", "| --- "))]


@cache
def collected_in(path: Path) -> set[str]:
    """Return the tests of a file, as pytest names them."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found |= {f"{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            found.add(node.name)
    return {name for name in found if name.rpartition("::")[2].startswith("test_")}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_every_row_names_tests_that_exist(row):
    _, how, tests = row.strip("| ").split(" | ")
    named = re.findall(r"`([\w/]+\.py)::([\w:]+)`", tests)
    assert how
    assert named
    assert [name for path, name in named if name not in collected_in(TESTS / path)] == []


def test_no_chapter_is_missing():
    assert len(ROWS) > 130
    assert re.findall(r"^## (\d)", TABLE, re.MULTILINE) == ["1", "2", "3", "4"]
