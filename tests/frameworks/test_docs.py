"""The Python blocks of the documentation that need a framework run where it is installed."""

import pytest

from rl_insight.testing import capture
from tests.api.test_docs import ROOT, blocks

pytest.importorskip("trl", reason="TRL is not installed: `make integrations` runs this")
PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if blocks(path, ["framework"])]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_blocks_with_frameworks_run(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with capture():
        for source in blocks(path, ["framework"]):
            exec(compile(source, str(path), "exec"), {"__name__": "__main__"})
