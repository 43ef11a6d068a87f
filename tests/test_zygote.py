"""A forked command is a process like any other."""

import os
import signal
import subprocess
import sys

import psutil
import pytest

from rl_insight import __version__
from tests import zygote

COMMAND = [sys.executable, "-m", "rl_insight.cli"]


def run(*words, **options):
    return subprocess.run([*COMMAND, *words], capture_output=True, text=True, check=False, **options)


def test_a_fork_has_its_own_environment_output_and_exit_code(tmp_path):
    for name in ("one", "two"):
        found = run("server", "status", env=os.environ | {"RL_INSIGHT_DATA_DIR": str(tmp_path / name)})
        assert (found.returncode, found.stderr) == (1, "")
        assert f"No server runs on {tmp_path / name}" in found.stdout
    assert run("nothing").returncode == 2


def test_a_fork_has_its_own_directory_and_dies_by_a_signal(tmp_path, wait_until):
    words = ["server", "start", "port=0", "otlp_http_port=null", "otlp_grpc_port=null", "--data-dir", "data"]
    with subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stdout=subprocess.DEVNULL) as server:
        wait_until((tmp_path / "data" / "server.json").exists)
        assert psutil.Process(server.pid).parent().pid != os.getpid()
        assert server.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            server.wait(0.01)
        server.kill()
        assert server.wait(20) == -signal.SIGKILL
    assert not psutil.pid_exists(server.pid)


def test_what_python_reads_at_its_start_is_respected(tmp_path):
    (tmp_path / "typer.py").write_text("raise ModuleNotFoundError('gone', name='typer')")
    assert "needs the package typer" in run("--version", env=os.environ | {"PYTHONPATH": str(tmp_path)}).stderr


def test_a_test_may_ask_for_a_start_as_users_make_it(executed):
    with subprocess.Popen([*COMMAND, "--version"], stdout=subprocess.PIPE, text=True) as command:
        assert type(command) is zygote.Executed
        assert command.communicate()[0] == f"rl-insight {__version__}\n"
