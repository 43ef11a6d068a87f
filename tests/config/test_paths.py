from __future__ import annotations

import doctest
import os
import subprocess
import sys
import time

import msgspec
import psutil
import pytest

from rl_insight.config import loading, paths
from rl_insight.config.paths import STATE_FILE, Server, ServerState, find_local_server, find_server

URL = "http://127.0.0.1:18080"


@pytest.fixture
def write_state(tmp_path, monkeypatch):
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path))

    def write(**fields):
        state = ServerState(**({"pid": os.getpid(), "url": URL, "token": "secret"} | fields))
        (tmp_path / STATE_FILE).write_bytes(msgspec.json.encode(state))
        return state

    return write


@pytest.mark.parametrize("url", [None, URL, f"{URL}/"])
def test_the_token_and_certificate_of_this_machine_s_server_are_known_with_and_without_its_url(
    write_state, tmp_path, url
):
    certificate = tmp_path / "cert.pem"
    certificate.write_text("")
    write_state(tls_cert=str(certificate))
    assert find_server(url, None) == Server(url or URL, "secret", str(certificate))
    assert find_server(url, "given") == Server(url or URL, "given", str(certificate))
    certificate.unlink()
    assert find_server(url, None) == Server(url or URL, "secret")


def test_another_server_gets_nothing_from_the_one_on_this_machine(write_state):
    write_state()
    assert find_server("http://node7:18080", None) == Server("http://node7:18080")


def test_without_a_url_and_a_running_server_there_is_none(tmp_path):
    assert find_server(None, "token", tmp_path) is None
    assert find_server(URL, "token", tmp_path) == Server(URL, "token")


def test_a_process_that_reuses_the_pid_of_a_server_is_not_that_server(write_state):
    started_s = psutil.Process().create_time()
    expected = write_state(process_started_s=started_s)
    assert find_local_server() == expected
    write_state(process_started_s=started_s - 60.0)
    assert find_local_server() is None


def test_a_server_that_has_exited_but_was_not_waited_for_is_not_running(write_state):
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        process = psutil.Process(child.pid)
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        write_state(pid=child.pid)
        assert find_local_server() is None


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b'{"pid": 1}', b'{"pid": -1, "url": ""}', b'{"pid": 1e40, "url": ""}']
)
def test_a_state_file_that_cannot_be_read_means_no_server(tmp_path, raw):
    (tmp_path / STATE_FILE).write_bytes(raw)
    assert find_local_server(tmp_path) is None


@pytest.mark.parametrize("module", [loading, paths])
def test_examples_in_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0
