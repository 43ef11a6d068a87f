"""`rl-insight`: commands, exit codes, and one-sentence error messages."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rl_insight import __version__
from rl_insight.cli import main
from rl_insight.cli.app import app

FREE_PORTS = ("port=0", "otlp_http_port=0", "otlp_grpc_port=0")
DOCUMENT = Path(__file__).parents[2] / "docs" / "server.md"


@pytest.fixture
def data_dir(tmp_path):
    directory = tmp_path / "data"
    yield directory
    main(["server", "stop", "--data-dir", str(directory)])


def run(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "rl_insight.cli", *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )


@pytest.mark.parametrize("word", ["version", "--version"])
def test_the_version_is_shown(capsys, word):
    assert main([word]) == 0
    assert capsys.readouterr().out == f"rl-insight {__version__}\n"


def test_help_and_version_load_nothing_heavy():
    code = (
        "import sys; from rl_insight.cli import main; main(['version']); main(['server', '--help']);"
        "print([name for name in ('duckdb', 'pyarrow', 'fastapi', 'grpc', 'omegaconf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing"], 2, "No such command"),
        (["server", "start", "prot=3"], 2, "did you mean 'port'?"),
        (["server", "start", "--port", "abc"], 2, "--port"),
        (["server", "status"], 1, "No server runs on"),
        (["server", "logs"], 1, "there is no log"),
        (["server", "targets", "list"], 1, "no server runs on"),
        (["server", "stop"], 0, "No server runs on"),
    ],
)
def test_exit_codes_and_sentences(words, code, said, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("COLUMNS", "300")
    assert main(words) == code
    captured = capsys.readouterr()
    assert said in " ".join((captured.out + captured.err).split())


def test_a_missing_dependency_is_a_sentence_and_code_2(tmp_path):
    (tmp_path / "duckdb.py").write_text("raise ModuleNotFoundError('gone', name='duckdb')")
    done = run("server", "start", *FREE_PORTS, "--data-dir", str(tmp_path / "d"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert "the package duckdb is not installed" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("executed")
def test_a_detached_server_is_ready_when_the_command_returns(data_dir, capsys):
    done = run("server", "start", "--detach", *FREE_PORTS, "--data-dir", str(data_dir))
    assert done.returncode == 0, done.stderr
    assert f"`rl-insight server stop --data-dir {data_dir}` stops it" in done.stdout
    assert "runs in the background" in done.stdout
    again = run("server", "start", "--detach", *FREE_PORTS, "--data-dir", str(data_dir))
    assert again.returncode == 0
    assert "A server is already running at http" in again.stdout

    where = ["--data-dir", str(data_dir)]
    assert main(["server", "status", "--json", *where]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["running"], found["is_ready"], found["writer"]["pending_batches"]) == (True, True, 0)
    assert main(["server", "status", *where]) == 0
    assert found["url"] in capsys.readouterr().out

    assert main(["server", "targets", "add", "a:1", "b:2", "--job", "vllm", "--label", "role=rollout", *where]) == 0
    assert "2 added, 2 in total." in capsys.readouterr().out
    assert main(["server", "targets", "list", "--json", *where]) == 0
    assert [entry["labels"] for entry in json.loads(capsys.readouterr().out)] == [{"role": "rollout"}] * 2
    assert main(["server", "targets", "list", *where]) == 0
    assert "http://a:1/metrics" in capsys.readouterr().out
    assert main(["server", "targets", "add", "not a target", *where]) == 1
    assert "is not a scrape target" in capsys.readouterr().err
    assert main(["server", "targets", "add", "c:1", "--label", "nonsense", *where]) == 2
    capsys.readouterr()
    jobs = data_dir / "jobs.yaml"
    jobs.write_text("jobs:\n- {job_name: vllm, labels: {a: 1}, targets: ['e:1', {target: 'f:2', labels: {a: 2}}]}\n")
    assert main(["server", "targets", "add", str(jobs), *where]) == 0
    assert "vllm: 4 targets in total." in capsys.readouterr().out
    jobs.write_text("jobs:\n- {job_name: broken, targets: []}\n- {job_name: good, targets: ['g:1']}\n")
    assert main(["server", "targets", "add", str(jobs), *where]) == 1
    assert "broken was not registered" in capsys.readouterr().err
    jobs.write_text("targets: []\n")
    assert main(["server", "targets", "add", str(jobs), *where]) == 2
    assert main(["server", "targets", "add", str(data_dir / "away.yaml"), *where]) == 2
    capsys.readouterr()
    assert main(["server", "targets", "remove", "a:1", *where]) == 0
    assert "1 removed." in capsys.readouterr().out

    assert main(["server", "logs", *where]) == 0
    assert "the server is ready at" in capsys.readouterr().out
    config = data_dir / "server.yaml"
    config.write_text(f"data_dir: {data_dir}\n")
    assert main(["server", "stop", "--config", str(config)]) == 0
    assert "Stopped the server with pid" in capsys.readouterr().out
    assert main(["server", "status", "--json", *where]) == 1
    left = json.loads(capsys.readouterr().out)
    assert (left["running"], left["stack"]["services"]) == (False, [])


def test_a_detached_server_that_cannot_start_says_why(data_dir):
    done = run("server", "start", "--detach", "host=192.0.2.1", "--data-dir", str(data_dir))
    assert done.returncode == 1
    assert "not an address of this machine" in done.stderr


def test_every_command_is_documented():
    import typer

    text = DOCUMENT.read_text()
    group = typer.main.get_command(app).commands["server"]
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        for words in [f"{name} {sub}" for sub in inner] if inner else [name]:
            assert re.search(rf"rl-insight server {words}\b", text), words


def test_auto_port_takes_free_ports_in_place_of_taken_ones(data_dir, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--port", str(port), "otlp_http_port=null", "otlp_grpc_port=null", "--log-dir", str(data_dir)]
        done = run("server", "start", "--detach", "--auto-port", *words)
        assert done.returncode == 0, done.stderr
    assert main(["server", "status", "--json", "--data-dir", str(data_dir)]) == 0
    assert not json.loads(capsys.readouterr().out)["url"].endswith(f":{port}")
    assert main(["server", "stop", "--data-dir", str(data_dir)]) == 0
    assert run("server", "start", "--detach", "--attach-logs", "--data-dir", str(data_dir)).returncode == 2
