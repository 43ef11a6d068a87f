"""Batches of every released schema version must be readable forever."""

import json
from pathlib import Path

import pytest

from rl_insight.schema import VERSION, decode, encode

GOLDEN = Path(__file__).parents[1] / "golden"
BATCHES = sorted(GOLDEN.glob("batch-v*.bin"))


def parsed(lines):
    return [json.loads(line) for line in lines.split(b"\n") if line]


@pytest.mark.parametrize("path", BATCHES, ids=lambda path: path.stem)
def test_a_golden_batch_is_read_as_written_down(path, golden_script):
    batch = decode(path.read_bytes())
    assert path.stem == f"batch-v{batch.version[0]}.{batch.version[1]}"
    assert parsed(golden_script.golden_lines(batch)) == parsed(path.with_suffix(".jsonl").read_bytes())


def test_the_current_version_has_a_golden_batch():
    assert GOLDEN / f"batch-v{VERSION[0]}.{VERSION[1]}.bin" in BATCHES


def test_encoding_the_golden_content_today_gives_an_equal_batch(golden_script):
    golden = decode((GOLDEN / f"batch-v{VERSION[0]}.{VERSION[1]}.bin").read_bytes())
    assert decode(encode(golden_script.golden_batch())) == golden
    assert decode(encode(golden)) == golden


def test_the_script_never_changes_a_golden_file_unasked(golden_script, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(golden_script, "GOLDEN", tmp_path)
    monkeypatch.setattr(golden_script, "SCHEMA_FILE", tmp_path / "schema.json")
    monkeypatch.setattr("sys.argv", ["make-golden"])
    assert golden_script.main() == 0
    changed = tmp_path / f"batch-v{VERSION[0]}.{VERSION[1]}.bin"
    assert changed.read_bytes() == (GOLDEN / changed.name).read_bytes()

    changed.write_bytes(b"of an older day")
    assert golden_script.main() == 1
    assert changed.read_bytes() == b"of an older day"
    assert "was kept" in capsys.readouterr().err

    monkeypatch.setattr("sys.argv", ["make-golden", "--replace"])
    assert golden_script.main() == 0
    assert changed.read_bytes() == (GOLDEN / changed.name).read_bytes()
