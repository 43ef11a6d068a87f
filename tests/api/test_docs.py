"""Every Python block of the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rl_insight as insight
from rl_insight.schema import decode, frame
from rl_insight.store import RunStore
from rl_insight.testing import capture

ROOT = Path(__file__).parents[2]
FILES = [*sorted((ROOT / "docs").rglob("*.md")), *ROOT.glob("README.md")]
FENCE = re.compile(r"^```python([^\n]*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(path, mark=()):
    """Return the runnable blocks of a file, padded so that a traceback names the line in the document.

    Blocks marked `framework` need a framework of several gigabytes: `tests/frameworks` runs those.
    """
    mark = list(mark)
    text = path.read_text()
    found = []
    for match in FENCE.finditer(text):
        marks = match.group(1).split()
        assert marks in ([], ["no-run"], ["framework"]), f"{path.name}: unknown mark {marks}"
        if marks == mark:
            found.append("\n" * text.count("\n", 0, match.start(2)) + match.group(2))
    return found


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory of the blocks: it contains a small run as `events.rli` and as `grpo-7b.duckdb`."""
    with capture() as captured:
        insight.metric_gauge("reward_mean", 0.5)
        with insight.trace_span("generate"):
            pass
        captured.flush()
    payloads = captured._transport.payloads
    (tmp_path / "events.rli").write_bytes(b"".join(map(frame, payloads)))
    with RunStore(tmp_path / "grpo-7b.duckdb", create=True) as store:
        store.commit(list(map(decode, payloads)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_python_blocks_run(path, folder):
    namespace = {"__name__": "__main__"}
    with capture():
        for source in blocks(path):
            exec(compile(source, str(path), "exec"), namespace)


def test_a_block_that_fails_is_seen(tmp_path):
    path = tmp_path / "x.md"
    path.write_text("text\n\n```python\nassert 1 == 2\n```\n\n```python no-run\ncluster()\n```\n")
    (source,) = blocks(path)
    with pytest.raises(AssertionError):
        exec(source, {})
