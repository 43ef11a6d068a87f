"""docs/collector.md is accurate."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rl_insight.collector import CollectorStatus, ProcessStatus, SinkStatus
from rl_insight.collector.health import HEALTH

PAGE = (Path(__file__).parents[2] / "docs" / "collector.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_code_on_the_page_runs(code):
    exec(compile(code, "docs/collector.md", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("status", [CollectorStatus, ProcessStatus, SinkStatus])
def test_every_status_field_is_documented(status):
    assert [name for name in status.__struct_fields__ if f"`{name}`" not in PAGE] == []


def test_every_health_metric_is_documented():
    short = {f"collector_sink_{name}" for name in ("queued", "written_total", "failed_total", "dropped_total")}
    names = {declared.kind.exposed_name("", declared.name) for declared in HEALTH.declarations}
    assert [name for name in names - short if f"`{name}" not in PAGE] == []
    assert "collector_sink_{queued,written_total,failed_total,dropped_total}" in PAGE
