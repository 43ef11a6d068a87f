"""The documentation as a site: every page is in the navigation and on the home page, and no link is broken."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import rl_insight
from docs_reference import PAGES as REFERENCE
from docs_reference import api, command_line
from docs_reference.settings import meanings
from docs_reference.text import docstring
from rl_insight.cli.app import build
from rl_insight.config import InsightConfig, config_keys
from rl_insight.server.app import openapi_document
from rl_insight.server.config import ServerSettings
from rl_insight.server.http import pages
from rl_insight.server.http.pages import docs_page

ROOT = Path(__file__).parents[2]
PAGES = {path.name for path in (ROOT / "docs").glob("*.md")} | set(REFERENCE)


def pages_of(nav):
    for entry in nav:
        for place in entry.values():
            if isinstance(place, str):
                yield place
            else:
                yield from pages_of(place)


def test_every_page_is_in_the_navigation_once():
    named = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    assert sorted(named) == sorted(PAGES)


def test_every_page_is_linked_from_the_first():
    linked = re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
    assert set(linked) == PAGES - {"index.md"}


def test_the_site_builds_without_warnings(tmp_path):
    if importlib.util.find_spec("material") is None:
        pytest.skip("MkDocs Material is not installed: `make docs` installs it")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "search" / "search_index.json").is_file()
    for path in REFERENCE:
        assert (tmp_path / path.removesuffix(".md") / "index.html").is_file(), path


def test_the_reference_has_every_name_command_route_and_key():
    pages = {path: page() for path, page in REFERENCE.items()}
    for name in api.public_names(rl_insight):
        assert f"### {name}\n" in pages["reference/api.md"], name
    for words, _ in command_line.commands(build(), "rl-insight"):
        assert f"## {words}\n" in pages["reference/cli.md"], words
    for path, operations in openapi_document()["paths"].items():
        for method in operations:
            assert f"## {method.upper()} {path}\n" in pages["reference/http.md"], path
    for model in (InsightConfig, ServerSettings):
        for key in config_keys(model):
            assert f"| `{key}` |" in pages["reference/settings.md"], key


@pytest.mark.parametrize("model", [InsightConfig, ServerSettings])
def test_every_setting_says_what_it_means(model):
    assert [key for key, text in meanings(model).items() if not text] == []


def test_a_docstring_becomes_code_and_lists():
    assert docstring(_documented) == (
        "Do something.\n\n```pycon\n>>> _documented(1)\n2\n```\n\n**Args**\n\n\n- `number`: One of them,\n"
        "  or another.\n\n**Raises**\n\n\n- `ValueError`: it is too large.\n"
    )


def _documented(number):
    """Do something.

    >>> _documented(1)
    2

    Args:
        number: One of them,
            or another.

    Raises:
        ValueError: it is too large.
    """


def test_types_of_the_http_api_are_described_in_words():
    assert doctest.testmod(pages).failed == 0
    page = docs_page(openapi_document())
    assert "<p>Body: NotesChange.</p>" in page
    assert "<p>Answer: list of RunInfo.</p>" in page
    assert re.search(r"<code>rank</code></td><td>integer or null</td><td></td><td>A process(&#x27;|')s number", page)


GUIDES = (
    "verl", "trl", "lightning", "skyrl", "areal", "xtuner", "nemo-rl", "slime", "prime-rl", "openrlhf", "vllm",
    "sglang", "ray", "slurm", "wandb",
)  # fmt: skip


@pytest.mark.parametrize("guide", GUIDES)
def test_each_guide_shows_its_result(guide):
    picture = ROOT / "docs" / "pictures" / f"guide-{guide}.png"
    assert f"](pictures/{picture.name})" in (ROOT / "docs" / f"{guide}.md").read_text()
    assert 10_000 < picture.stat().st_size < 150_000
