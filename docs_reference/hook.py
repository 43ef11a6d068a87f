"""A hook of MkDocs that adds the reference pages to the site."""

from __future__ import annotations

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parents[1]))

from docs_reference import PAGES


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for path, page in PAGES.items():
        files.append(File.generated(config, path, content=page()))
    return files
