"""The examples in the documents run, and every field and key is described."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_insight.compat.xtuner import TraceConfig
from rl_insight.recorder.sessions import FINAL_STATUSES, MARKS
from rl_insight.store.queries import StoredSession

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", ["sessions.md", "areal.md", "xtuner.md", "verl.md"])
def test_the_examples_run(name, insight_capture):
    scope: dict[str, object] = {}
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL):
        exec(block, scope)
    assert insight_capture.spans
    assert insight_capture.losses == {}


@pytest.mark.parametrize("name", ["skyrl.md", "nemo-rl.md"])
def test_the_examples_of_monitors_run(name):
    for block in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(), re.DOTALL):
        exec(block, {})


def test_every_field_of_the_record_is_described():
    text = (DOCS / "sessions.md").read_text()
    fields = {name for name in StoredSession.__struct_fields__ if name not in ("process_id", "phase_seconds")}
    assert {name for name in (*fields, *MARKS, *FINAL_STATUSES) if f"`{name}`" not in text} <= {"wait_return"}


def test_every_key_of_the_trace_configuration_is_described():
    text = (DOCS / "xtuner.md").read_text()
    assert [name for name in TraceConfig.model_fields if f"`{name}`" not in text] == []
