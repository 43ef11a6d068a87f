from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "transports.md").read_text()
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
SOURCES = (Path(__file__).parents[2] / "src" / "rl_insight" / "transport").glob("*.py")


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_example_runs(example):
    exec(compile(example, "docs/transports.md", "exec"), {"__name__": "example"})


def test_every_loss_reason_is_documented():
    source = "".join(path.read_text() for path in SOURCES)
    reasons = set(re.findall(r'on_loss\("batches", "(\w+)", (?!0\))', source)) | {"disk"}
    assert len(reasons) > 5
    assert [reason for reason in sorted(reasons) if f"| `{reason}` |" not in PAGE] == []
