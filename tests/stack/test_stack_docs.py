"""The documentation is complete."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

from rl_insight.collector.derived import DECLARATIONS
from rl_insight.config import config_keys
from rl_insight.stack import StackSettings
from rl_insight.stack.programs import PROGRAMS
from rl_insight.stack.render import dashboard_files, package_files

DOCS = Path(__file__).parents[2] / "docs"


def rows(name):
    """The first cells of all tables of a document that are code."""
    lines = (DOCS / name).read_text().splitlines()
    return {
        match for line in lines if line.startswith("| `") for match in re.findall(r"`([^`]+)`", line.split(" |")[0])
    }


def test_every_setting_is_documented_with_its_default():
    text = (DOCS / "stack.md").read_text()
    settings = StackSettings()
    for key in config_keys(StackSettings):
        value = settings
        for part in key.split("."):
            value = getattr(value, part)
        if isinstance(value, float) and value == int(value):
            value = int(value)
        shown = f"`{json.dumps(value).strip(chr(34))}`" if value not in (None, []) else "none"
        assert f"| `{key}` | {shown} |" in text, key


def test_no_setting_is_documented_that_does_not_exist():
    assert rows("stack.md") == set(config_keys(StackSettings))


def test_every_derived_metric_and_alert_is_documented():
    alerts = set(re.findall(r"alert: (\w+)", (package_files("rules") / "rl-insight.yml").read_text()))
    assert (
        rows("dashboards.md") == {declared.kind.exposed_name("", declared.name) for declared in DECLARATIONS} | alerts
    )


@pytest.mark.parametrize("name", sorted(dashboard_files()))
def test_every_dashboard_is_documented(name):
    assert f"`{name.removesuffix('.json')}`" in (DOCS / "dashboards.md").read_text()


def test_minimum_versions_are_documented():
    text = (DOCS / "stack.md").read_text()
    for program in PROGRAMS.values():
        major, minor, _ = program.minimum
        assert re.search(rf"\| {program.title} \| {major}(\.{minor})? or newer", text)


def test_each_defect_seen_with_real_programs_names_tests_that_exist():
    here = Path(__file__).parent
    defects = ast.get_docstring(ast.parse((here / "test_real_programs.py").read_text()))
    existing = set(
        re.findall(r"^def (test_\w+)", "".join(file.read_text() for file in here.glob("*.py")), re.MULTILINE)
    )
    named = re.findall(r"\btest_\w+", defects)
    assert len(named) > 15
    assert set(named) <= existing
