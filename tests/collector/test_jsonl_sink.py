from __future__ import annotations

import json
import math

import pytest

from rl_insight.collector.sinks.jsonl import JsonlSink


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_process_precedes_its_first_record_and_each_batch_is_flushed(tmp_path, fake_process):
    path = tmp_path / "deep" / "events.jsonl"
    sink = JsonlSink(path)
    first, second = fake_process("a"), fake_process("b")
    sink.write(first.gauge("x", math.nan).batch())
    sink.write(first.batch())
    sink.write(first.gauge("x", 2.0).batch())
    sink.write(second.span().batch())
    assert [(row["type"], row["process_id"]) for row in rows(path)] == [
        ("process", "a"),
        ("sample", "a"),
        ("sample", "a"),
        ("process", "b"),
        ("span", "b"),
    ]
    assert rows(path)[1]["value"] == "NaN"
    assert sink.get_status()["lines"] == 5
    sink.close()


def test_each_run_gets_its_own_file(tmp_path, fake_process):
    sink = JsonlSink(tmp_path, per_run=True)
    for run_id in ("run-1", "../../escape", "..", "a/b", "a_b"):
        sink.write(fake_process(f"p-{run_id}", run_id=run_id).span().batch())
    sink.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) == 5
    assert tmp_path / "run-1.jsonl" in files
    assert all(len(rows(path)) == 2 for path in files)


def test_very_many_runs_keep_few_files_open(tmp_path, fake_process):
    sink = JsonlSink(tmp_path, per_run=True)
    for _ in range(2):
        for number in range(70):
            sink.write(fake_process("p", run_id=f"run{number}").span().batch())
    sink.close()
    assert all(
        [row["type"] for row in rows(path) if row["type"] == "span"] == ["span"] * 2 for path in tmp_path.iterdir()
    )


def test_full_file_is_put_aside_and_the_new_one_introduces_its_processes(tmp_path, fake_process):
    path = tmp_path / "events.jsonl"
    sink = JsonlSink(path, max_bytes=1, max_backups=2)
    process = fake_process()
    for number in range(4):
        sink.write(process.gauge("x", float(number)).batch())
    sink.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1", "events.jsonl.2"]
    for name, value in (("events.jsonl", 3.0), ("events.jsonl.1", 2.0), ("events.jsonl.2", 1.0)):
        first, second = rows(tmp_path / name)
        assert (first["type"], second["value"]) == ("process", value)
    assert sink.get_status()["rotations"] == 3


@pytest.mark.parametrize("left_over", [b'{"type": "sam', b'{"type": "sample"}\n', b""])
def test_line_cut_short_by_a_crash_does_not_swallow_the_next(tmp_path, fake_process, left_over):
    path = tmp_path / "events.jsonl"
    path.write_bytes(left_over)
    sink = JsonlSink(path)
    sink.write(fake_process().span().batch())
    sink.close()
    lines = path.read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines[-2:]] == ["process", "span"]
    assert "" not in lines
