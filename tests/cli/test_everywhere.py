"""Every command on a live run, an ended run, a run file without a server, and a remote server with a token and TLS."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import rl_insight as insight
from rl_insight.cli import main
from rl_insight.cli.app import COMMANDS, GROUPS, LOCAL
from rl_insight.config.paths import find_local_server
from tests.reader.recorded import record, start_server, stop_server

TOKEN = "0123456789abcdef0123"
LIVE = """
import sys, time
import rl_insight as insight
insight.init("math", "live", run_id="live-1", role="trainer", rank=0)
step = 0
while not sys.stdin.closed:
    with insight.step(step), insight.trace_state("rollout"):
        with insight.session("task", session_id=f"live-{step}") as session, insight.phase("generate"):
            time.sleep(0.05)
            session.finalize("accepted", reward=1.0)
    insight.metric_gauge("reward", step / 10)
    step += 1
    if step == 4:
        insight.flush(30)
        print("recording", flush=True)
"""
KINDS = ("live", "ended", "file", "remote")


class Where(NamedTuple):
    """The location of a run: the options that select the server or directory, and the run."""

    options: list[str]
    run: str
    variables: dict[str, str]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tls")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(directory / "key.pem"),
         "-out", str(directory / "cert.pem")],
        check=True, capture_output=True,
    )  # fmt: skip
    return directory


@pytest.fixture(scope="module")
def server(tmp_path_factory, certificate):
    """The data directory of a server with TLS and a token, an ended run, and one that is being recorded."""
    directory = tmp_path_factory.mktemp("everywhere")
    trusted = str(certificate / "cert.pem")
    tls = (f"tls_cert={trusted}", f"tls_key={certificate / 'key.pem'}")
    start_server(directory, *tls, "sql.enabled=true", RL_INSIGHT_TOKEN=TOKEN)
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RL_INSIGHT_")}
    try:
        record(directory, "ended-1", "ended")
        with subprocess.Popen(
            [sys.executable, "-c", LIVE],
            env=variables | {"RL_INSIGHT_DATA_DIR": str(directory)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ) as trainer:
            try:
                assert trainer.stdout.readline() == b"recording\n"
                yield directory
            finally:
                trainer.kill()
    finally:
        stop_server(directory)


@pytest.fixture(scope="module")
def places(server, certificate, tmp_path_factory):
    directory = tmp_path_factory.mktemp("no-server")
    (directory / "runs").mkdir()
    file = directory / "runs" / "ended-1.duckdb"
    assert main(["runs", "export", "ended", "-o", str(file), "--data-dir", str(server)]) == 0
    here = ["--data-dir", str(server)]
    remote = ["--server", find_local_server(server).url, "--token", TOKEN]
    return {
        "live": Where(here, "live", {}),
        "ended": Where(here, "ended", {}),
        "file": Where(["--data-dir", str(directory)], "ended", {}),
        "remote": Where(remote, "live", {"SSL_CERT_FILE": str(certificate / "cert.pem")}),
    }


@pytest.fixture(params=KINDS)
def where(request, places, monkeypatch, tmp_path):
    chosen = places[request.param]
    for name, value in chosen.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return chosen


QUESTIONS = {
    "runs list": (["runs", "list"], "ended-1"),
    "runs show": (["runs", "show", "RUN"], "experiment name"),
    "runs export": (["runs", "export", "RUN", "-o", "copy.duckdb"], "Wrote copy.duckdb"),
    "hotspots": (["hotspots", "--run", "RUN", "--scope", "all"], "rollout"),
    "sessions": (["sessions", "--run", "RUN", "--scope", "all"], "accepted"),
    "transcript": (["sessions", "--run", "ended", "--transcript", "s1-1"], "user\n2 + 2?\n\nassistant  "),
    "diagnose": (["diagnose", "RUN"], "rules could not be evaluated"),
    "stacks": (["stacks", "RUN", "--wait", "0"], ""),
    "diff": (["diff", "RUN", "ended"], ""),
    "top": (["top", "RUN", "--once"], "step time"),
    "export": (["export", "--run", "RUN", "-o", "trace.json.gz"], "Wrote "),
    "export tables": (["export", "--run", "RUN", "--format", "csv", "-o", "tables"], "Wrote "),
    "report": (["report", "--run", "RUN", "-o", "report.html"], "Wrote report.html"),
}
WITH_SERVER = {
    "open": (["open", "RUN", "--print"], "/?run="),
    "doctor": (["doctor"], "write and read back"),
    "server status": (["server", "status"], "http"),
    "server targets list": (["server", "targets", "list"], "No targets are registered."),
}


def run_command(words, where, capsys):
    capsys.readouterr()
    code = main([where.run if word == "RUN" else word for word in words] + where.options)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("words", QUESTIONS)
def test_commands_that_ask(words, where, capsys):
    command, expected = QUESTIONS[words]
    code, out, err = run_command(command, where, capsys)
    assert (code, expected in out) == (0, True), out + err
    if words == "export":
        import gzip

        assert json.loads(gzip.decompress(Path("trace.json.gz").read_bytes()))["traceEvents"]
    elif words == "export tables":
        assert Path("tables/spans.csv").stat().st_size > 100
    elif words == "report":
        assert Path("report.html").read_bytes().startswith(b"<!doctype html>")


@pytest.mark.parametrize("words", WITH_SERVER)
def test_commands_that_need_a_server(words, where, capsys):
    command, expected = WITH_SERVER[words]
    code, out, err = run_command(command, where, capsys)
    if "no-server" in where.options[1]:
        assert code == 1, out + err
        assert "rl-insight server start" in " ".join((out + err).split())
    else:
        assert (code, expected in out) == (0, True), out + err


def test_a_file_is_imported_and_its_run_deleted(where, capsys, tmp_path):
    phases = {"generate": [{"start_ts": 1.7e9, "end_ts": 1.7e9 + 1}]}
    session = {"session_id": 1, "status": "accepted", "submit_ts": 1.7e9, "phases": phases}
    (tmp_path / "sessions-r0.jsonl").write_text(json.dumps(session) + "\n")
    assert run_command(["import", "sessions-r0.jsonl", "--run", "imported"], where, capsys)[0] == 0
    assert "accepted" in run_command(["sessions", "--run", "imported", "--scope", "all"], where, capsys)[1]
    assert run_command(["runs", "export", "imported", "-o", "imported.duckdb"], where, capsys)[0] == 0
    assert run_command(["runs", "delete", "imported", "--yes"], where, capsys)[0] == 0
    assert run_command(["runs", "import", "imported.duckdb"], where, capsys)[0] == 0
    assert run_command(["diagnose", "imported", "--mute", "straggler"], where, capsys)[0] == 0
    assert run_command(["runs", "delete", "imported", "--yes"], where, capsys)[0] == 0


def test_the_python_reader(where):
    names = {"--data-dir": "data_dir", "--server": "server", "--token": "token"}
    options = {names[name]: value for name, value in zip(where.options[::2], where.options[1::2], strict=True)}
    with insight.open_run(where.run, **options) as run:
        assert run.spans(name="rollout").first()["name"] == "rollout"
        assert run.sessions().first()["status"] in {"accepted", "failed"}
        assert len(run.steps().to_dicts()) >= 3
        assert run.sql("SELECT count(*) AS n FROM spans").first()["n"] > 0


def test_agents(where):
    mcp = pytest.importorskip("mcp")

    async def talk():
        words = ["-m", "rl_insight.cli", "mcp", *where.options]
        program = mcp.StdioServerParameters(command=sys.executable, args=words, env=dict(os.environ))
        async with mcp.stdio_client(program) as streams, mcp.ClientSession(*streams) as session:
            await session.initialize()
            return await session.call_tool("summary", {"run": where.run})

    answer = json.loads(asyncio.run(talk()).content[0].text)
    assert answer["run_id"] == f"{where.run}-1"
    assert answer["spans"] > 0


def test_a_run_file_is_named_by_its_path(places, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = str(Path(places["file"].options[1]) / "runs" / "ended-1.duckdb")
    for words in (["hotspots", file], ["sessions", "--run", file], ["top", file, "--once"], ["diagnose", file],
                  ["report", file, "-o", "a.html"], ["export", "--run", file, "-o", "b.json"], ["diff", file, file],
                  ["runs", "show", file], ["stacks", file]):  # fmt: skip
        assert main(words) == 0, (words, capsys.readouterr())


def test_no_command_is_left_out():
    asked = {words.split()[0] for words in QUESTIONS} | {words.split()[0] for words in WITH_SERVER}
    assert {*COMMANDS, *GROUPS} - asked == {"import", "mcp", "run", "version"}
    assert {"run", "version"} <= LOCAL
