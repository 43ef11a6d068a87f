"""docs/sinks.md is accurate."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from rl_insight.collector.sinks.jsonl import JsonlSink
from rl_insight.collector.sinks.otlp import OtlpSink, otlp_sinks
from rl_insight.collector.sinks.registry import GROUP
from rl_insight.collector.sinks.remote_write import RemoteWriteSink
from rl_insight.server.config import load_settings

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sinks.md").read_text()


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_code_on_the_page_runs(code):
    exec(compile(code, "docs/sinks.md", "exec"), {"__name__": "docs"})


@pytest.mark.parametrize("line", re.findall(r"^rl-insight server start ((?!sinks.kafka).*)$", PAGE, re.MULTILINE))
def test_commands_on_the_page_give_valid_settings(line):
    load_settings(words=line.replace("'", "").split())


def test_settings_file_on_the_page_is_valid(tmp_path, monkeypatch):
    monkeypatch.setenv("MIMIR_TOKEN", "a")
    monkeypatch.setenv("OTLP_TOKEN", "b")
    path = tmp_path / "server.yaml"
    path.write_text(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])
    assert load_settings(path).sinks["remote_write"]["headers"]["Authorization"] == "Bearer a"


def test_every_option_is_documented_and_no_other():
    documented = set(re.findall(r"^\| `(sinks\.[a-z_.]+)` \|", PAGE, re.MULTILINE))
    options = {"clock", "name", "options"}  # not for a configuration
    ours = {
        f"sinks.{point.name}.{option}"
        for point in entry_points(group=GROUP)
        for option in inspect.signature(point.load()).parameters
        if option not in options
    }
    # Passed on to the sinks of all signals.
    common = {f"sinks.otlp.{option}" for option in ("headers", "timeout_s", "retry_for_s", "flush_interval_s")}
    assert common <= {f"sinks.otlp.{option}" for option in inspect.signature(OtlpSink).parameters}
    assert documented == ours | common


def test_every_field_of_a_status_is_documented(tmp_path):
    first, *others = otlp_sinks("http://127.0.0.1:1")
    for sink in (first, RemoteWriteSink("http://127.0.0.1:1"), JsonlSink(tmp_path / "x")):
        assert [name for name in sink.get_status() if f"`{name}`" not in PAGE] == []
    assert [sink.items for sink in others if f"`{sink.items}`" not in PAGE] == []


def test_every_sink_by_name_is_documented():
    page = (DOCS / "collector.md").read_text()
    assert [point.name for point in entry_points(group=GROUP) if f"`{point.name}`" not in page] == []
