"""Listing runs without opening their files."""

import time

import duckdb
import pytest

from rl_insight.store import RunDirectory, RunStore, runs
from rl_insight.store.connections import RunFile
from rl_insight.store.errors import StorePageError


@pytest.fixture
def written(tmp_path, make):
    """A data directory with two runs, listed once."""
    directory = RunDirectory(tmp_path, min_free_bytes=0)
    for run_id in ("a", "b"):
        maker = make(process_id=f"p-{run_id}", run_id=run_id)
        maker.span("work", step=3)
        with directory.open(run_id, create=True) as store:
            store.commit([maker.build(final=True)])
    directory.close()
    again = RunDirectory(tmp_path, min_free_bytes=0)
    assert len(again.list_runs()) == 2
    again.close()
    return tmp_path


def listed(data_dir):
    directory = RunDirectory(data_dir, min_free_bytes=0)
    try:
        return {info.run_id: info for info in directory.list_runs()}
    finally:
        directory.close()


def test_another_process_lists_runs_without_opening_them(written):
    before = listed(written)
    with RunStore(written / "runs" / "a.duckdb"):  # cannot be opened a second time, to be read alone
        after = listed(written)
    assert after == before
    assert (after["a"].last_step, after["a"].problem, after["a"].state) == (3, "", "ended")


def test_runs_that_this_server_has_closed_are_listed_without_opening_them_again(tmp_path, make, monkeypatch):
    directory = RunDirectory(tmp_path, max_open=1, min_free_bytes=0)
    for number, run_id in enumerate(("a", "b", "c")):
        maker = make(process_id=f"p-{run_id}", run_id=run_id)
        maker.span("work", step=number)
        with directory.open(run_id, create=True) as store:
            store.commit([maker.build(final=True)])
    with monkeypatch.context() as patch:
        patch.setattr("rl_insight.store.runs.open_run_file", lambda path: pytest.fail(f"{path} was opened"))
        found = {info.run_id: info for info in directory.list_runs()}
        assert {run_id: info.last_step for run_id, info in found.items()} == {"a": 0, "b": 1, "c": 2}
        directory.close()
        kept = listed(tmp_path)
    (tmp_path / "runs" / ".index.json").unlink()
    assert kept == listed(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b'{"version":"0.0","entries":{}}', b'{"version":1}'])
def test_an_index_that_cannot_be_used_is_rebuilt(written, content):
    index = written / "runs" / ".index.json"
    before = listed(written)
    index.write_bytes(content)
    assert listed(written) == before
    assert len(index.read_bytes()) > 100


def test_a_run_that_was_written_is_read_again(written, make):
    maker = make(process_id="more", run_id="a")
    maker.span("work", step=9)
    with RunStore(written / "runs" / "a.duckdb", min_free_bytes=0) as store:
        store.commit([maker.build(final=True)])
    assert (listed(written)["a"].last_step, listed(written)["a"].processes) == (9, 2)


def test_a_deleted_run_is_not_listed(written):
    directory = RunDirectory(written)
    directory.delete("a")
    directory.close()
    assert list(listed(written)) == ["b"]


def test_a_run_that_is_open_for_reading_is_listed(written):
    (written / "runs" / ".index.json").unlink()
    file = RunFile(written / "runs" / "a.duckdb")
    try:
        assert listed(written)["a"].problem == ""
    finally:
        file.close()


def test_a_large_run_in_use_is_not_gone_through_at_every_listing(written, make, monkeypatch):
    monkeypatch.setattr("rl_insight.store.runs._LARGE_BYTES", 0)
    monkeypatch.setattr("rl_insight.store.runs._CHEAP", 1e6)
    directory = RunDirectory(written, min_free_bytes=0)
    with directory.open("a") as store:
        for number, step in enumerate((10, 11), 1):
            maker = make(process_id=f"more-{number}", run_id="a")
            maker.span("work", step=step, start=time.time_ns())
            store.commit([maker.build()])
            info = directory.get("a")
            assert (info.processes, info.state) == (number + 1, "running")
            assert info.last_step == 10
    directory.close()
    assert listed(written)["a"].last_step == 11


@pytest.mark.parametrize("error", [StorePageError, duckdb.InternalException])
def test_a_file_that_cannot_be_read_does_not_hide_the_other_runs(written, monkeypatch, error):
    (written / "runs" / ".index.json").unlink()
    read = runs.read_info

    def fails_for_one(cursor, shown, run_id, earlier=None):
        if shown.file == "a.duckdb":
            raise error("a page is damaged")
        return read(cursor, shown, run_id, earlier)

    monkeypatch.setattr(runs, "read_info", fails_for_one)
    assert {run_id: info.problem for run_id, info in listed(written).items()} == {"a": "a page is damaged", "b": ""}
