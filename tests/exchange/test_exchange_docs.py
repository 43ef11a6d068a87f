"""The docs cover every format, command and table, and their images are small."""

import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest
import typer

import rl_insight.exchange
from rl_insight.cli.app import COMMANDS, app
from rl_insight.exchange.exporting.exporter import WRITERS
from rl_insight.exchange.exporting.writers.tables import TABLES
from rl_insight.exchange.importing.formats import FORMATS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_format_and_table_is_documented():
    text = (DOCS / "import-export.md").read_text()
    for name in (*FORMATS, *WRITERS):
        assert f"`{name}`" in text, name
    for table in TABLES:
        assert table in text, table


def test_every_command_is_documented():
    text = (DOCS / "import-export.md").read_text() + (DOCS / "report.md").read_text()
    group = typer.main.get_command(app).commands["runs"]
    own = ["import", "export", "report", "hotspots", "sessions"]
    assert set(own) <= COMMANDS.keys()
    for words in [*own, *(f"runs {name}" for name in group.commands)]:
        assert f"rl-insight {words}" in text, words


def test_pictures_are_there_and_small():
    pictures = list((DOCS / "pictures").glob("report-*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size < 300_000
        assert f"pictures/{picture.name}" in (DOCS / "report.md").read_text()


def _modules():
    return [info.name for info in pkgutil.walk_packages(rl_insight.exchange.__path__, "rl_insight.exchange.")]


@pytest.mark.parametrize("name", _modules())
def test_examples_in_docstrings_hold(name):
    failed, _ = doctest.testmod(importlib.import_module(name))
    assert not failed
