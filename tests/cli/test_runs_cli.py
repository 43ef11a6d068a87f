"""`rl-insight runs ...`: the same on a data directory without a server and through a server that has it open."""

import json
import subprocess
import sys

import pytest

from rl_insight.cli import main
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunDirectory

FREE_PORTS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")


def make_run(data_dir, run_id):
    runs = RunDirectory(data_dir, min_free_bytes=0)
    builder = BatchBuilder()
    builder.add_span(span_id=1, trace=(1, 1), name="work", start_ns=10**18, duration_ns=10**9, step=4)
    process = Process(process_id="p", run_id=run_id, host="h", pid=1, project="math", experiment_name="grpo")
    with runs.open(run_id, create=True) as store:
        store.commit([builder.build(process, sequence=1, sent_ns=0)])
    runs.close()


@pytest.fixture(params=["alone", "server"])
def data_dir(request, tmp_path, monkeypatch):
    """A data directory with two runs, with and without a server on it."""
    directory = tmp_path / "data"
    for run_id in ("first", "../odd run"):
        make_run(directory, run_id)
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(directory))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    if request.param == "server":
        words = [sys.executable, "-m", "rl_insight.cli", "server", "start", "--detach", *FREE_PORTS]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    yield directory
    main(["server", "stop"])


def test_runs_are_listed_and_shown(data_dir, capsys):
    assert main(["runs", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {info["run_id"] for info in found} == {"first", "../odd run"}
    assert main(["runs", "list"]) == 0
    assert "../odd run" in capsys.readouterr().out
    assert main(["runs", "show", "../odd run", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["run_id"], shown["spans"], shown["last_step"]) == ("../odd run", 1, 4)
    assert main(["runs", "show", "first"]) == 0
    assert "4 to 4" in capsys.readouterr().out
    assert main(["runs", "show", "nothing"]) == 1
    assert "there is no run 'nothing'" in capsys.readouterr().err


def test_a_run_goes_out_and_comes_back(data_dir, tmp_path, capsys):
    copy = tmp_path / "copy.duckdb"
    assert main(["runs", "export", "../odd run", "-o", str(copy)]) == 0
    assert main(["runs", "export", "../odd run", "-o", str(copy)]) == 1
    assert "it exists" in capsys.readouterr().err
    assert main(["runs", "import", str(copy)]) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["runs", "delete", "../odd run", "--yes"]) == 0
    assert main(["runs", "show", "../odd run"]) == 1
    assert main(["runs", "import", str(copy)]) == 0
    assert main(["runs", "show", "../odd run"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy.duckdb", "data"]
    assert [path.name for path in data_dir.iterdir() if path.name.startswith(".transfer")] == []


@pytest.mark.parametrize("content", [None, b"", b"hello" * 5000])
def test_what_is_not_a_run_file_is_refused(content, data_dir, tmp_path, capsys):
    file = tmp_path / "bad.duckdb"
    if content is not None:
        file.write_bytes(content)
    assert main(["runs", "import", str(file)]) == 1
    assert capsys.readouterr().err.startswith("rl-insight: cannot ")
    assert main(["runs", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2


def test_deleting_asks_first(data_dir, capsys, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert main(["runs", "delete", "first"]) == 1
    assert main(["runs", "show", "first"]) == 0


def test_reports_and_tables_of_the_last_run(data_dir, tmp_path, capsys, report_bundle):
    assert main(["hotspots", "--run", "first", "--json"]) == 0
    assert [spot["name"] for spot in json.loads(capsys.readouterr().out)] == ["work"]
    assert main(["hotspots", "--run", "first", "--scope", "step=9"]) == 0
    assert "There are no spans in step 9 of first." in capsys.readouterr().out
    assert main(["hotspots"]) == 0
    shown = capsys.readouterr().out
    assert " 1.00 s " in shown
    assert "Only step 4, the latest" in shown
    assert main(["sessions"]) == 0
    assert "no sessions" in capsys.readouterr().out
    assert main(["report", "-o", "r.html"]) == 0
    assert (tmp_path / "r.html").stat().st_size > 10_000
    assert main(["export", "--run", "first", "-o", "t.json"]) == 0
    assert json.loads((tmp_path / "t.json").read_text())["otherData"]["run_id"] == "first"
    assert main(["export", "--run", "nothing", "-o", "u.json"]) == 1
    assert not (tmp_path / "u.json").exists()


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["hotspots", "--scope", "yesterday"], 2, "must be latest, all or step=N"),
        (["hotspots", "--by", "colour"], 2, "'colour' is unknown: it must be one of name, role"),
        (["hotspots"], 1, "there are no runs in"),
        (["export", "-o", "x", "--format", "xml"], 2, "must be one of chrome"),
        (["export", "-o", "x", "--start", "soon"], 2, "cannot parse"),
        (["report", "nothing.jsonl"], 1, "there is no run 'nothing.jsonl'"),
        (["report", "./nothing"], 1, "there is no file or directory ./nothing."),
        (["report", "nothing.jsonl", "other"], 1, "there is no file or directory nothing.jsonl."),
        (["report", "x.jsonl", "--run", "y"], 2, "not both"),
        (["import", "nothing.jsonl"], 1, "no such file or directory"),
        (["runs", "list"], 0, "There are no runs in"),
        (["runs", "show", "x"], 1, "there is no run 'x'"),
    ],
)
def test_exit_codes_and_sentences_of_runs(words, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    assert main(words) == code
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())


def test_the_new_commands_load_nothing_heavy():
    code = (
        "import sys; from rl_insight.cli import main\n"
        "for name in ('runs', 'import', 'export', 'report', 'hotspots', 'sessions'): main([name, '--help'])\n"
        "print([name for name in ('duckdb', 'pyarrow', 'numpy', 'fastapi') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_tags_and_notes_are_added_removed_and_listed(data_dir, capsys):
    assert main(["runs", "tag", "first", "baseline", "lr sweep", "--note", "the one to beat"]) == 0
    assert capsys.readouterr().out == "Tags of first: baseline, lr sweep.\nthe one to beat\n"
    assert main(["runs", "tag", "first", "--remove", "baseline"]) == 0
    capsys.readouterr()
    assert main(["runs", "list", "--json"]) == 0
    found = {info["run_id"]: info for info in json.loads(capsys.readouterr().out)}
    assert (found["first"]["tags"], found["first"]["notes"]) == (["lr sweep"], "the one to beat")
    assert found["../odd run"]["tags"] == []
    assert main(["runs", "tag", "first", "x" * 61]) == 1
    assert "too long" in capsys.readouterr().err
