"""Run files over HTTP: downloaded during a live run, uploaded once, with no access to other files of the server."""

import pytest

from rl_insight.store import RunStore


@pytest.fixture
def run_file(services, client, make_batch, frames):
    """The content of a run's file, as the server sends it."""
    body = frames(make_batch(1, run_id="../r 1"))
    assert client.post("/api/v1/ingest", content=body, headers={"content-type": "application/octet-stream"}).is_success
    answer = client.get("/api/v1/runs/file", params={"run": "../r 1"})
    assert answer.status_code == 200
    assert ".." not in answer.headers["content-disposition"]
    return answer.content


def test_a_copy_can_be_opened_on_its_own(run_file, tmp_path):
    copy = tmp_path / "copy.duckdb"
    copy.write_bytes(run_file)
    with RunStore(copy, min_free_bytes=0) as store, store.reader() as cursor:
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(3,)]


def test_a_file_comes_back_after_its_run_was_deleted(run_file, client):
    assert client.post("/api/v1/runs/file", content=run_file).status_code == 409
    assert client.request("DELETE", "/api/v1/runs", params={"run": "../r 1"}).status_code == 200
    answer = client.post("/api/v1/runs/file", content=run_file)
    assert (answer.status_code, answer.json()["run_id"]) == (200, "../r 1")


@pytest.mark.parametrize("content", [b"", b"x", b"hello " * 10_000, b"\x00" * 20_000])
def test_what_is_not_a_run_file_is_refused_without_a_path(content, client, services):
    answer = client.post("/api/v1/runs/file", content=content)
    assert answer.status_code == 400
    assert str(services.settings.directory) not in answer.text


def test_a_file_that_holds_no_run_yet_is_refused(client, tmp_path):
    RunStore(tmp_path / "empty.duckdb", min_free_bytes=0, create=True).close()
    answer = client.post("/api/v1/runs/file", content=(tmp_path / "empty.duckdb").read_bytes())
    assert answer.status_code == 400
    assert "not a run file" in answer.json()["error"]


def test_a_file_that_was_cut_short_is_refused(run_file, client):
    client.request("DELETE", "/api/v1/runs", params={"run": "../r 1"})
    assert client.post("/api/v1/runs/file", content=run_file[: len(run_file) // 2]).status_code == 400


@pytest.mark.parametrize("run", ["nothing", "../../etc/passwd", "", "a/b"])
def test_there_is_no_file_of_an_unknown_run(run, client):
    assert client.get("/api/v1/runs/file", params={"run": run}).status_code == 404


def test_nothing_is_left_behind(run_file, client, services):
    client.post("/api/v1/runs/file", content=b"hello")
    assert [path.name for path in services.settings.directory.iterdir() if path.name.startswith(".transfer")] == []
