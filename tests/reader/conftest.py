"""One server with three recorded runs for all tests of a worker, and the same runs as files."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from rl_insight.config.paths import find_local_server
from tests.reader.crowd import make_crowd
from tests.reader.recorded import record, start_server, stop_server


@pytest.fixture(autouse=True)
def _no_settings_of_the_user(monkeypatch, tmp_path):
    for name in ("RL_INSIGHT_SERVER_URL", "RL_INSIGHT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / "no-data"))


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A data directory with a running server: runs grpo-7b-a, grpo-7b-b (started last), ppo-1."""
    directory = tmp_path_factory.mktemp("served")
    start_server(directory, "sql.enabled=true")
    try:
        record(directory, "ppo-1", "ppo")
        record(directory, "grpo-7b-a")
        record(directory, "grpo-7b-b")
        yield directory
    finally:
        stop_server(directory)


@pytest.fixture(scope="session")
def server_url(served):
    return find_local_server(served).url


@pytest.fixture(scope="session")
def files(served, tmp_path_factory):
    """A data directory with the same runs and no server."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "runs").mkdir()
    from rl_insight.cli.transfer import RUN_PATH, RunTransfer

    with closing(RunTransfer(find_local_server(served))) as client:
        for row in client.get("/api/v1/runs"):
            with (directory / "runs" / row["file"]).open("wb") as stream:
                client.download(RUN_PATH, {"run": row["run_id"]}, stream, lambda *_: None)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(params=["server", "files"])
def place(request, served, files):
    """The runs in a data directory, with and without a server on it."""
    return served if request.param == "server" else files


@pytest.fixture(scope="session")
def crowd_files(tmp_path_factory):
    """A data directory with a run of a thousand processes and no server."""
    directory = tmp_path_factory.mktemp("crowd")
    make_crowd(directory)
    return directory


@pytest.fixture(scope="session")
def crowd_served(tmp_path_factory):
    """A data directory with a running server that has a run of a thousand processes."""
    directory = tmp_path_factory.mktemp("crowd-served")
    make_crowd(directory)
    start_server(directory, "sql.enabled=true")
    yield directory
    stop_server(directory)
