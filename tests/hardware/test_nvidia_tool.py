from __future__ import annotations

import json
import stat
import sys

from benchmarks.nvidia.__main__ import main
from benchmarks.nvidia.compare import parse_query


def test_once_prints_each_reading_as_json(capsys):
    assert main(["--once", "--json", "--source", "host"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["kind"] for row in rows} == {"node", "process"}
    assert rows[0]["values"]["resident_memory_bytes"] > 0


def test_once_prints_tables_for_people(capsys):
    assert main(["--once", "--source", "host"]) == 0
    assert "memory_used_bytes" in capsys.readouterr().out


def test_comparison_needs_the_tool(monkeypatch, capsys):
    monkeypatch.setenv("PATH", "")
    assert main(["--compare-nvidia-smi", "--seconds", "0.1"]) == 2
    assert "nvidia-smi was not found" in capsys.readouterr().err


def put_tool(tmp_path, monkeypatch, line):
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!{sys.executable}\nprint({line!r})\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path))


def test_readings_that_agree_are_reported(tmp_path, monkeypatch, capsys, helpers, fake_nvml):
    fake_nvml(helpers.FakeGpu("GPU-a"))
    put_tool(tmp_path, monkeypatch, "0, 31, 10240, 350.1, [N/A], [N/A]")
    assert main(["--compare-nvidia-smi", "--seconds", "0.1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["comparisons"]
    assert {row["quantity"] for row in rows} == {"utilization_ratio", "memory_used_bytes", "power_watts"}
    assert all(row["agrees"] for row in rows)


def test_readings_that_differ_end_with_status_1(tmp_path, monkeypatch, capsys, helpers, fake_nvml):
    fake_nvml(helpers.FakeGpu("GPU-a"))
    put_tool(tmp_path, monkeypatch, "0, 95, 10240, 350.1, [N/A], [N/A]")
    assert main(["--compare-nvidia-smi", "--seconds", "0.1"]) == 1
    assert "utilization_ratio    ours 0.31, nvidia-smi 0.95" in capsys.readouterr().out


def test_lines_that_make_no_sense_are_left_out():
    assert parse_query("No devices were found\n\n0, 1\n") == {}
