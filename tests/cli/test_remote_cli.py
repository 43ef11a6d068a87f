"""Commands on runs: by id, prefix and experiment, local and on another server; exit codes and messages."""

import json
import subprocess
import sys

import pytest

from rl_insight.cli import main
from rl_insight.cli.app import COMMANDS, LOCAL, build
from tests.reader.recorded import STEPS, record, start_server, stop_server

TOKEN = "0123456789abcdef0123"


@pytest.fixture
def said(capsys):
    def run(*words):
        capsys.readouterr()
        code = main(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["import", ".", "--format", "foo"], 2, "'foo' is unknown: it must be one of auto, rli"),
        (["export", "-o", "x", "--format", "foo"], 2, "'foo' is unknown"),
        (["sessions", "--order", "foo"], 2, "'foo' is unknown: it must be one of session_id"),
        (["sessions", "--status", "foo"], 2, "'foo' is unknown: it must be one of pending, accepted"),
        (["sessions", "--scope", "foo"], 2, "scope 'foo' is unknown"),
        (["export", "-o", "x", "--lane", "nope", "--run", "ppo"], 1, "nothing was written: no spans, events or logs"),
        (["export", "-o", "x", "--step", "99"], 1, "of grpo-7b-b match these conditions"),
        (["report", "--scope", "step=99"], 1, "nothing was written: there are no spans in step 99 of grpo-7b-b."),
        (["runs", "delete", "nope"], 1, "there is no run 'nope'"),
        (["runs", "delete", "grp", "--yes"], 1, "'grp' is a prefix of 2 runs"),
        (["runs", "show", "gpro-7b"], 1, "Did you mean 'grpo-7b'?"),
        (["import", "empty"], 1, "nothing was imported: empty has no files of a known format."),
        (["hotspots", "--scope", "step=99"], 0, "There are no spans in step 99 of grpo-7b-b."),
        (["sessions", "--status", "lost"], 0, "There are no lost sessions in the latest step of grpo-7b-b."),
        (["export", "-o", "x", "--start", "yesterday"], 2, "cannot parse 'yesterday' as a time"),
        (["runs", "list", "--server", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9 does not answer"),
        (["runs", "list", "--server", "http://a", "--data-dir", "b"], 2, "either --server or --data-dir"),
        (["runs", "list", "--server", "node7"], 2, "is not an http or https URL"),
        (["runs", "import", "junk"], 1, "or not a run file"),
        (
            ["hotspots", "--run", "typo.duckdb"],
            1,
            "there is no run file typo.duckdb. Check the path; none was created.",
        ),
        (["runs", "list", "--data-dir", "typo/data"], 0, "There are no runs in typo/data yet."),
        (["hotspots", "--data-dir", "junk"], 1, "there are no runs in junk."),
        (["runs", "import", "junk", "--data-dir", "junk"], 1, "cannot use junk as the data directory"),
    ],
)
def test_exit_codes_and_sentences(words, code, sentence, place, said, tmp_path, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(place))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk").write_text("not a run")
    found, out, err = said(*words)
    assert (found, sentence in " ".join((out + err).split())) == (code, True), out + err
    assert {path.name for path in tmp_path.iterdir()} <= {"empty", "junk", "no-data"}


def test_a_run_is_not_deleted_without_a_yes(place, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(place))
    for answer in ("n\n", ""):
        done = subprocess.run(
            [sys.executable, "-m", "rl_insight.cli", "runs", "delete", "ppo"],
            input=answer,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1
        assert "run ppo-1 was not deleted" in done.stderr


def test_the_environment_names_a_remote_server(server_url, said, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", server_url)
    code, out, _ = said("runs", "list", "--json")
    assert (code, [row["run_id"] for row in json.loads(out)]) == (0, ["grpo-7b-b", "grpo-7b-a", "ppo-1"])
    assert json.loads(said("sessions", "--run", "ppo", "--scope", "all", "--json")[1])["total"] == 4 * STEPS
    assert {row["name"] for row in json.loads(said("hotspots", "--run", "grpo-7b", "--json")[1])} >= {"rollout"}
    assert json.loads(said("runs", "show", "pp", "--json")[1])["run_id"] == "ppo-1"
    assert json.loads(said("server", "status", "--json")[1])["url"] == server_url


def test_questions_copy_no_run_file(server_url, said, monkeypatch):
    def refuse(*_):
        raise AssertionError("the run file was copied")

    monkeypatch.setattr("rl_insight.cli.transfer.RunTransfer.download", refuse)
    for words in (["hotspots"], ["sessions"], ["runs", "show", "ppo"]):
        assert said(*words, "--server", server_url)[0] == 0


def test_a_server_with_a_token_and_a_certificate(tmp_path, said, monkeypatch):
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)],
        check=True, capture_output=True,
    )  # fmt: skip
    directory = tmp_path / "data"
    monkeypatch.setenv("RL_INSIGHT_TOKEN", TOKEN)
    start_server(directory, f"tls_cert={certificate}", f"tls_key={key}", f"token={TOKEN}")
    try:
        from rl_insight.config.paths import find_local_server

        url = find_local_server(directory).url
        monkeypatch.delenv("RL_INSIGHT_TOKEN")
        assert "CERTIFICATE_VERIFY_FAILED" in said("runs", "list", "--server", url)[2]
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        code, _, err = said("runs", "list", "--server", url)
        assert (code, "Give its token: --token, or RL_INSIGHT_TOKEN." in err) == (1, True), err
        assert said("runs", "list", "--server", url, "--token", TOKEN)[:2] == (0, f"There are no runs on {url} yet.\n")
    finally:
        stop_server(directory)


def test_ids_stay_whole_in_a_narrow_terminal(place, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = said("runs", "list", "--data-dir", str(place))
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == ["run", "grpo-7b-b", "grpo-7b-a", "ppo-1"]
    assert max(map(len, out.splitlines())) <= 80


def test_names_stay_whole_in_a_narrow_terminal(place, said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = said("hotspots", "--scope", "all", "--data-dir", str(place))[1]
    assert "update_critic" in out
    assert max(map(len, out.splitlines()[:-1])) <= 60


def test_the_same_file_is_imported_under_several_names(tmp_path, said, monkeypatch):
    directory = tmp_path / "data"
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(directory))
    file = tmp_path / "sessions-r0.jsonl"
    phases = {"generate": [{"start_ts": 1.7e9, "end_ts": 1.7e9 + 1}]}
    file.write_text(json.dumps({"session_id": 1, "status": "accepted", "submit_ts": 1.7e9, "phases": phases}) + "\n")
    start_server(directory)
    try:
        for name in ("first", "second"):
            assert said("import", str(file), "--run", name)[0] == 0
        assert {row["run_id"] for row in json.loads(said("runs", "list", "--json")[1])} == {"first", "second"}
        assert json.loads(said("sessions", "--run", "second", "--scope", "all", "--json")[1])["total"] == 1
        assert "1 of 1 batches were already in the run" in said("import", str(file), "--run", "second")[1]
        # What was deleted can be brought in again.
        assert said("runs", "delete", "first", "--yes")[0] == 0
        assert said("import", str(file), "--run", "first")[0] == 0
        assert json.loads(said("sessions", "--run", "first", "--scope", "all", "--json")[1])["total"] == 1
    finally:
        stop_server(directory)


def test_every_command_that_asks_a_server_takes_its_address():
    waiting = [((), build())]
    for path, command in waiting:
        waiting += [((*path, name), sub) for name, sub in getattr(command, "commands", {}).items()]
        is_local = path[:1] == ("server",) and path[1:2] in {("start",), ("stop",), ("logs",), ("install",)}
        if getattr(command, "commands", None) or is_local or path[0] in LOCAL:
            continue
        options = {option for parameter in command.params for option in getattr(parameter, "opts", ())}
        assert {"--server", "--token"} <= options, path
    assert len(waiting) > len(COMMANDS)


def test_flags_take_no_value_in_help(said, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    waiting = [((), build())]
    for path, command in waiting:
        waiting += [((*path, name), sub) for name, sub in getattr(command, "commands", {}).items()]
        text = said(*path, "--help")[1]
        assert "Usage" in text, path
        assert "bool" not in text.lower(), path


@pytest.fixture
def completed(capsys, monkeypatch):
    """Complete a line as a shell does."""

    def complete(line):
        words = line.split(" ")
        for name, value in {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("_RL_INSIGHT_COMPLETE", "complete_bash")
        capsys.readouterr()
        with pytest.raises(SystemExit):
            main([])
        monkeypatch.delenv("_RL_INSIGHT_COMPLETE")
        return capsys.readouterr().out.split()

    return complete


def test_the_shell_completes_runs_and_experiments(served, server_url, completed, monkeypatch):
    runs = ["grpo-7b-b", "grpo-7b", "grpo-7b-a"]
    for command in ("top", "runs show", "diagnose", "stacks", "open"):
        assert completed(f"rl-insight {command} --data-dir {served} grpo") == runs, command
    for command in ("hotspots", "sessions", "report", "export"):
        assert completed(f"rl-insight {command} --data-dir {served} --run grpo") == runs, command
    assert completed(f"rl-insight top --server {server_url} gr") == runs
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(served))
    assert completed("rl-insight runs delete pp") == ["ppo-1", "ppo"]
    assert completed("rl-insight diff ppo grpo-7b-") == ["grpo-7b-b", "grpo-7b-a"]
    monkeypatch.setenv("RL_INSIGHT_SERVER_URL", "http://127.0.0.1:9")
    assert completed("rl-insight top grpo") == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("export --format c", ["chrome", "csv"]),
        ("import x --format areal", ["areal-sessions", "areal-trace"]),
        ("sessions --status re", ["rejected"]),
        ("sessions --scope ", ["latest", "all", "step="]),
        ("hotspots --scope la", ["latest"]),
        ("report --scope al", ["all"]),
        ("hotspots --by na", ["name", "name_role"]),
        ("top --view ra", ["ranks"]),
        ("diagnose --fail-on w", ["warning"]),
        ("diagnose --rules stuck_engine,stragg", ["stuck_engine,straggler"]),
        ("diagnose --mute stragg", ["straggler"]),
        ("mcp --transport h", ["http"]),
        ("runs ex", ["export"]),
    ],
)
def test_the_shell_completes_words(line, words, completed):
    assert completed(f"rl-insight {line}") == words


def test_a_run_recorded_now_is_the_latest(served, said):
    record(served, "zz-early", "other")
    assert json.loads(said("runs", "list", "--data-dir", str(served), "--json")[1])[0]["run_id"] == "zz-early"
    assert said("runs", "delete", "zz", "--yes", "--data-dir", str(served))[0] == 0
