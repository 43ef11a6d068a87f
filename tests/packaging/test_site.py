"""The documentation as a site: every page is in its navigation and on its first page, and nothing is broken."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = {path.name for path in (ROOT / "docs").glob("*.md")}


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
    linked = re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs" / "index.md").read_text())
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
