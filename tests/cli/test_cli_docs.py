"""docs/cli.md, docs/mcp.md and docs/top.md document every command, tool, view and option."""

import inspect

import pytest

from rl_insight.cli.app import build
from rl_insight.cli.frame import VIEWS
from tests.api.test_docs import ROOT


def text(name):
    return (ROOT / "docs" / name).read_text()


def test_every_command_is_documented():
    for name in build().commands:
        assert f"`rl-insight {name}" in text("cli.md"), name


def test_every_view_and_option_of_top_is_documented():
    page = text("top.md")
    assert all(f"`{view}`" in page for view in VIEWS)
    for parameter in build().commands["top"].params:
        for option in getattr(parameter, "opts", ()):
            if option.startswith("--") and option not in {"--data-dir", "--help"}:
                assert option in page, option


def test_every_tool_of_mcp_is_documented():
    pytest.importorskip("mcp")
    from rl_insight.cli.mcp import RunTools

    for name, _ in inspect.getmembers(RunTools, inspect.isfunction):
        assert name.startswith("_") or f"| `{name}` |" in text("mcp.md"), name
