"""`rl-insight import`: into a data directory, and through a server."""

import gzip
import json
import os
import signal
import subprocess
import sys

import pytest

from rl_insight.cli import main

FREE_PORTS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")
BEGIN_S = 1_767_225_600.0


def session(number):
    at = BEGIN_S + (number if isinstance(number, int) else 0)
    phases = {"generate": [{"start_ts": at, "end_ts": at + 2.0}]}
    return json.dumps({"session_id": number, "status": "accepted", "submit_ts": at, "finalized_ts": at + 3, "step": 1,
                       "phases": phases}).encode() + b"\n"  # fmt: skip


@pytest.fixture(params=["alone", "server"])
def data_dir(request, tmp_path, monkeypatch):
    directory = tmp_path / "data"
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(directory))
    monkeypatch.setenv("COLUMNS", "300")
    if request.param == "server":
        words = [sys.executable, "-m", "rl_insight.cli", "server", "start", "--detach", *FREE_PORTS]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    yield directory
    main(["server", "stop"])


def shown(capsys, run):
    capsys.readouterr()
    assert main(["runs", "show", run, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_an_incomplete_compressed_file_comes_in_as_far_as_it_goes_and_is_an_error(data_dir, tmp_path, capsys):
    packed = gzip.compress(b"".join(map(session, range(100))))
    file = tmp_path / "sessions-r0.jsonl.gz"
    file.write_bytes(packed[: len(packed) // 2])
    assert main(["import", str(file), "--run", "r"]) == 1
    assert f"the gzip data of {file} ends too early, after" in capsys.readouterr().err
    assert 0 < shown(capsys, "r")["sessions"] < 100
    file.write_bytes(packed)
    assert main(["import", str(file), "--run", "r"]) == 0
    assert shown(capsys, "r")["sessions"] == 100


def test_files_come_in_once_and_bad_lines_are_reported(data_dir, tmp_path, capsys):
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(session(0) + b"bad\n" + session(1) + session(2)[:20])
    assert main(["import", str(file), "--run", "r"]) == 0
    captured = capsys.readouterr()
    assert "Read 2 records from 1 file (1 areal-sessions)" in captured.out
    assert "1 record could not be read" in captured.err
    assert "1 file with a truncated last record" in captured.err
    assert main(["import", str(file), "--run", "r", "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (again["new_batches"], again["duplicate_batches"]) == (0, 1)
    found = shown(capsys, "r")
    assert (found["sessions"], found["spans"], found["lost"]) == (2, 4, 1)
    assert main(["sessions", "--run", "r", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert (listed["total"], listed["sessions"][0]["total_s"]) == (2, 3.0)
    assert main(["sessions", "--run", "r"]) == 0
    assert "generate" in capsys.readouterr().out


def test_times_stay_as_they_were_recorded(data_dir, tmp_path, capsys):
    file = tmp_path / "sessions-r0.jsonl"
    for number in range(8):  # one portion each, so that a server could take the delay for a clock that is off
        with file.open("ab") as stream:
            stream.write(session(number))
        assert main(["import", str(file), "--run", "r"]) == 0
    found = shown(capsys, "r")
    assert found["sessions"] == 8
    assert found["start_ns"] == 1_767_225_600_000_000_000


def test_tables_and_reports_of_files_need_no_run(tmp_path, capsys, monkeypatch, report_bundle):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "unused"))
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(session(0) + session(1))
    assert main(["hotspots", str(file), "--json"]) == 0
    assert {spot["name"] for spot in json.loads(capsys.readouterr().out)} == {"generate", "session"}
    assert main(["sessions", str(file), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] == 2
    assert main(["report", str(file)]) == 0
    assert (tmp_path / "report.html").exists()
    (tmp_path / "empty.jsonl").touch()
    assert main(["report", str(tmp_path / "empty.jsonl")]) == 1
    assert "there is nothing to show" in capsys.readouterr().err


def test_rows_of_a_table_stay_lines_where_nobody_looks(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "unused"))
    monkeypatch.delenv("COLUMNS", raising=False)
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(session("x" * 300))
    assert main(["sessions", str(file)]) == 0
    assert "x" * 300 in capsys.readouterr().out


def test_figures_stay_whole_and_empty_columns_away_in_a_narrow_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "unused"))
    monkeypatch.setenv("COLUMNS", "80")
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(b"".join(map(session, range(40))))
    assert main(["hotspots", str(file)]) == 0
    head, *rows, note = capsys.readouterr().out.splitlines()
    assert note == "Only step 1, the latest; --scope all shows every step."
    assert head.split() == ["name", "count", "wall", "avg", "p50", "p95", "p99", "max", "total"]
    assert [row.split()[0] for row in rows] == ["session", "generate"]
    assert rows[0].split()[1:4] == ["40", "42.0", "s"]
    assert len({len(row.rstrip()) for row in rows}) == 1
    assert main(["sessions", str(file), "--scope", "all"]) == 0
    assert "alone" not in capsys.readouterr().out


def test_following_ends_with_an_interrupt_and_says_what_it_did(tmp_path, monkeypatch, wait_until, capsys):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "data"))
    file = tmp_path / "logs" / "sessions-r0.jsonl"
    file.parent.mkdir()
    file.write_bytes(session(0))
    words = [sys.executable, "-m", "rl_insight.cli", "import", str(file.parent), "--follow", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as program:
        assert "Following" in program.stdout.readline()
        wait_until((tmp_path / "data" / "runs" / "logs.duckdb").exists)
        with file.open("ab") as stream:
            stream.write(session(1))
        cuts = tmp_path / "data" / "imports" / "logs.duckdb.jsonl"
        wait_until(lambda: cuts.exists() and len(cuts.read_bytes().splitlines()) == 2)
        os.kill(program.pid, signal.SIGINT)
        summary = json.loads(program.stdout.read())
        assert program.wait(20) == 0
    assert (summary["records"], summary["bad"]) == (2, 0)
    assert shown(capsys, "logs")["sessions"] == 2
