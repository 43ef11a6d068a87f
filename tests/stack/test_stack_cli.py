"""The commands that install the stack and show its status."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import msgspec
import pytest
import typer
from click.testing import CliRunner

from rl_insight.cli import stack as commands
from rl_insight.errors import ConfigError
from rl_insight.stack import MetricsEndpointOfServer, MissingProgramError, StackError, stack_status, start_stack
from rl_insight.stack.install import platform_words
from rl_insight.stack.programs import PROGRAMS

SYSTEM, MACHINE = platform_words()


@pytest.fixture
def run(tmp_path):
    app = typer.Typer()
    app.command()(commands.install)
    command = typer.main.get_command(app)

    def invoke(*words):
        result = CliRunner().invoke(command, [*words, "--data-dir", str(tmp_path / "data")], standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result.output

    return invoke


@pytest.fixture
def archives(tmp_path, stand_in):
    stand_in(tmp_path / "tempo", "tempo", "3.0.3")
    place = tmp_path / "archives"
    place.mkdir()
    archive = place / PROGRAMS["tempo"].archive_url.format(
        version="3.0.3", system=SYSTEM, machine=MACHINE
    ).rpartition("/")[2]  # fmt: skip
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "tempo", arcname="tempo")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    archive.with_name(archive.name + ".sha256").write_text(f"{digest}  {archive.name}\n")
    return place


def test_install_says_what_it_did(run, archives, tmp_path):
    text = run("--local-archive", str(archives), "--only", "tempo")
    assert f"Installed Tempo 3.0.3 at {tmp_path / 'data' / 'stack' / 'programs' / 'tempo' / 'tempo'}" in text
    assert "Already installed: Tempo 3.0.3" in run("--local-archive", str(archives), "--only", "tempo")
    assert "Installed Tempo 3.0.3" in run("--local-archive", str(archives), "--only", "tempo", "--force")


def test_a_file_and_options_say_what_is_installed_where(run, archives, tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text(f"stack: {{install_dir: {tmp_path / 'a'}, prometheus: {{enabled: false}}}}\n")
    with pytest.raises(MissingProgramError) as error:
        run("--config", str(config), "--local-archive", str(archives))
    assert "Grafana, such as" in str(error.value)
    assert "Prometheus, such as" not in str(error.value)
    config.write_text(config.read_text() + "grafana: {enable: false}\n")
    assert f"at {tmp_path / 'a' / 'tempo' / 'tempo'}" in run("--config", str(config), "--local-archive", str(archives))
    words = ["--config", str(config), "--local-archive", str(archives), "--install-dir", str(tmp_path / "b")]
    assert f"Installed Tempo 3.0.3 at {tmp_path / 'b' / 'tempo' / 'tempo'}" in run(*words)


def test_the_version_of_the_file_is_downloaded(run, tmp_path):
    config = tmp_path / "server.yaml"
    config.write_text("grafana: {install_version: 12.0.1}\n")
    with pytest.raises(StackError, match=r"grafana-12\.0\.1"):
        run("--config", str(config), "--only", "grafana", "--mirror", "http://127.0.0.1:9")


def test_install_lists_what_is_missing(run, archives):
    with pytest.raises(MissingProgramError, match=r"Prometheus, such as .* Grafana, such as"):
        run("--local-archive", str(archives))


@pytest.mark.parametrize("words", [["--only", "loki"], ["--version", "tempo"], ["--version", "loki=1"]])
def test_install_refuses_what_it_does_not_know(run, words):
    with pytest.raises(ConfigError):
        run(*words)


@pytest.mark.parametrize(
    ("stack", "words", "settings"),
    [
        (False, ["port=1"], ["port=1"]),
        (False, ["local"], ["local"]),
        (True, [], ["stack.enabled=true"]),
        (True, ["compose"], ["stack.enabled=true", "stack.mode=compose"]),
        (True, ["port=1", "auto"], ["stack.enabled=true", "stack.mode=auto", "port=1"]),
    ],
)
def test_the_mode_follows_the_option(stack, words, settings):
    assert commands.stack_words(words, stack=stack) == settings


def test_status_shows_each_service(tmp_path, settings, prometheus_program, capsys):
    assert commands.stack_rows(tmp_path) == []
    with start_stack(settings(), tmp_path, MetricsEndpointOfServer("http://127.0.0.1:9")) as stack:
        ((title, state, url, version, restarts),) = commands.stack_rows(tmp_path)
        assert (title, state, url, restarts) == ("Prometheus", "running", stack.urls["prometheus"], "0 restarts")
        assert version
        commands.say_stack(tmp_path)
        assert capsys.readouterr().out.count("Prometheus") == 1
        described = json.loads(msgspec.json.encode(stack_status(tmp_path)))
        assert described["running"]
        assert described["services"][0]["name"] == "prometheus"


def test_status_names_the_file_with_grafanas_password(tmp_path, settings, stand_in, prometheus_program, capsys):
    grafana = str(stand_in(tmp_path / "grafana", "grafana", "13.0.1"))
    chosen = settings(grafana__enabled=True, grafana__binary_path=grafana)
    with start_stack(chosen, tmp_path, MetricsEndpointOfServer("http://127.0.0.1:9")):
        commands.say_stack(tmp_path)
    said = capsys.readouterr().out.split("password is in ")[1].strip().rstrip(".").replace("\n", "")
    assert Path(said).read_text(encoding="utf-8")
