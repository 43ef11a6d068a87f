from __future__ import annotations

import pytest

from rl_insight.collector.sinks.jsonl import JsonlSink
from rl_insight.collector.sinks.otlp import OtlpTraceSink
from rl_insight.collector.sinks.registry import create_sink
from rl_insight.errors import ConfigError


def test_built_in_sinks_are_made_by_name(tmp_path):
    assert create_sink("memory", {"name": "mine"}).name == "mine"
    assert isinstance(create_sink("jsonl", {"path": tmp_path / "x.jsonl"}), JsonlSink)
    assert isinstance(create_sink("otlp", {"endpoint": "http://127.0.0.1:1"}), OtlpTraceSink)


@pytest.fixture
def installed_package(tmp_path, monkeypatch):
    """A package that registers sinks through entry points."""
    (tmp_path / "other_sinks.py").write_text(
        "from rl_insight.collector.sinks.memory import MemorySink\n"
        "def good(**options): return MemorySink(name='good', **options)\n"
        "def bad(): return object()\n"
    )
    metadata = tmp_path / "other_sinks-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: other-sinks\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[rl_insight.sinks]\ngood = other_sinks:good\nbad = other_sinks:bad\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("installed_package")
def test_sinks_of_other_packages_are_found():
    assert create_sink("good", {"max_batches": 1}).name == "good"
    with pytest.raises(ConfigError, match="must be a"):
        create_sink("bad", {})


def test_unknown_sink_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match="known are jsonl, memory, otlp"):
        create_sink("kafka", {})


def test_wrong_option_is_refused():
    with pytest.raises(ConfigError, match="cannot be made"):
        create_sink("memory", {"size": 1})
