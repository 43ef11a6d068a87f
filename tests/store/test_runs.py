"""The directory of runs: names, handles, damage, retention, copies."""

from __future__ import annotations

import logging
import os
import threading
import time

import pytest

from rl_insight.store import (
    RunDirectory,
    RunNotFoundError,
    RunStore,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
)
from rl_insight.store.run_files import file_name

SECOND = 1_000_000_000
HOSTILE = [
    "../../etc/passwd",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a/b",
    "a\\b",
    "nul\x00",
    "x" * 5000,
    ".hidden",
    "日本",
    "a b",
    "-rf",
    "~",
]


@pytest.fixture
def directory(tmp_path):
    opened = RunDirectory(tmp_path, min_free_bytes=0)
    yield opened
    opened.close()


def _write(directory, make, run_id, spans=1):
    maker = make(run_id=run_id, project="project", experiment_name="experiment")
    for _ in range(spans):
        maker.span()
    with directory.open(run_id, create=True) as store:
        assert store.commit([maker.build()]) == [True]


@pytest.mark.parametrize("run_id", HOSTILE, ids=[repr(name[:20]) for name in HOSTILE])
def test_no_run_id_reaches_outside_the_directory(directory, make, run_id, tmp_path):
    _write(directory, make, run_id)
    (found,) = tmp_path.rglob("*.duckdb")
    assert found.parent == directory.path
    assert directory.get(run_id).run_id == run_id
    directory.close()
    again = RunDirectory(tmp_path)
    assert [info.run_id for info in again.list_runs()] == [run_id]
    again.delete(run_id)
    assert again.list_runs() == []
    again.close()


def test_different_run_ids_never_share_a_file():
    names = [file_name(run_id) for run_id in [*HOSTILE, "a-b", "a.b", "a_b", "A", "run", "etc-passwd", "a~b", "a;b"]]
    assert len(set(names)) == len(names)
    assert all(len(name) < 128 and "/" not in name and not name.startswith(".") for name in names)


def test_a_run_that_is_not_there_is_a_clear_error(directory):
    for ask in (directory.get, directory.delete, lambda run_id: directory.open(run_id).__enter__()):
        with pytest.raises(RunNotFoundError, match=r"^there is no run 'nope'"):
            ask("nope")
    assert directory.list_runs() == []


def test_list_reports_what_the_run_says_about_itself(directory, make):
    _write(directory, make, "r1")
    (info,) = directory.list_runs()
    assert (info.run_id, info.project, info.experiment_name, info.processes) == ("r1", "project", "experiment", 1)
    assert info.size_bytes > 0
    assert info.last_seen_ns >= info.started_ns > 0


def test_the_names_of_a_run_are_those_of_any_process_that_has_some(directory, make):
    for process_id, names in (("worker", {}), ("trainer", {"project": "math", "experiment_name": "grpo"})):
        maker = make(process_id, "r1", **names)
        maker.span()
        with directory.open("r1", create=True) as store:
            assert store.commit([maker.build()]) == [True]
    (info,) = directory.list_runs()
    assert (info.project, info.experiment_name, info.processes) == ("math", "grpo", 2)


def test_the_latest_run_began_last_and_is_never_the_one_of_scraped_metrics(directory, make):
    for run_id, began in (("old", 0), ("new", 3_600 * SECOND), ("targets", 7_200 * SECOND), ("old", 10_000 * SECOND)):
        maker = make(run_id=run_id, process_id=f"{run_id} {began}")
        maker.span(start=began, duration=2 * SECOND, step=began // SECOND)
        with directory.open(run_id, create=True) as store:
            store.commit([maker.build()])
    found = directory.list_runs()
    assert [info.run_id for info in found] == ["new", "old", "targets"]
    # By the clock of the data: the processes of these runs reported just now, and recorded long ago.
    assert [(info.ended_ns - info.started_ns) // SECOND for info in found] == [2, 10_002, 2]
    assert [info.last_step for info in found] == [3_600, 10_000, 7_200]


@pytest.mark.parametrize(
    ("final", "ago_s", "state"), [(True, 0, "ended"), (False, 0, "running"), (False, 999, "silent")]
)
def test_the_state_of_a_run_is_that_of_its_processes(directory, make, final, ago_s, state):
    maker = make(run_id="r1")
    maker.span()
    with directory.open("r1", create=True) as store:
        store.commit([maker.build(final=final)], received_ns=[time.time_ns() - ago_s * SECOND])
    assert [info.state for info in directory.list_runs()] == [state]


@pytest.mark.parametrize(
    ("processes", "state"),
    [
        ([("trainer", True, 0, 5.0), ("scrape-engine:1-vllm", False, 0, 8.0)], "ended"),
        ([("trainer", False, 60, 5.0), ("scrape-engine:1-vllm", False, 0, 86_400.0)], "silent"),
        ([("trainer", False, 0, 5.0), ("scrape-engine:1-vllm", True, 0, 8.0)], "running"),
        ([("trainer", False, 60, 5.0), ("slow", True, 60, 3_600.0)], "silent"),
        ([("trainer", False, 60, 5.0), ("slow", False, 60, 3_600.0)], "running"),
        ([("scrape-engine:1-vllm", False, 0, 8.0)], "running"),
        ([("scrape-engine:1-vllm", False, 60, 8.0)], "silent"),
    ],
)
def test_each_process_counts_with_its_own_heartbeat_and_targets_only_where_there_is_nothing_else(
    directory, make, processes, state
):
    with directory.open("r1", create=True) as store:
        for process_id, final, ago_s, heartbeat_s in processes:
            maker = make(run_id="r1", process_id=process_id, heartbeat_s=heartbeat_s)
            store.commit([maker.build(final=final)], received_ns=[time.time_ns() - ago_s * SECOND])
    assert [info.state for info in directory.list_runs()] == [state]


def test_idle_files_are_closed_and_opened_again_when_needed(tmp_path, make):
    directory = RunDirectory(tmp_path, max_open=2, min_free_bytes=0)
    for run_id in "abcd":
        _write(directory, make, run_id)
    assert directory.open_runs() == ["c", "d"]
    with directory.open("a") as first, directory.open("b"), directory.open("c"):
        assert len(directory.open_runs()) == 3
        with first.reader() as cursor:
            assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(1,)]
    assert len(directory.open_runs()) == 2
    assert directory.close_idle(0.0) == 2
    assert directory.open_runs() == []
    directory.close()
    with pytest.raises(StoreError, match="closed"), directory.open("a"):
        pass


def test_a_damaged_file_is_set_aside_and_the_run_continues_in_a_new_one(directory, make, caplog):
    _write(directory, make, "bad")
    directory.close_idle(0.0)
    path = directory.file_of("bad")
    os.truncate(path, 5000)
    with caplog.at_level(logging.ERROR):
        _write(directory, make, "bad")
    assert "moved the run file" in caplog.text
    (aside,) = directory.path.glob("bad.duckdb.corrupt-*")
    assert aside.stat().st_size == 5000
    assert directory.get("bad").processes == 1


def test_a_damaged_file_that_is_only_read_is_set_aside_and_never_stops_the_list(directory, make):
    for run_id in ("good", "bad", "worse"):
        _write(directory, make, run_id)
    directory.close_idle(0.0)
    directory.file_of("bad").write_bytes(b"rubbish" * 3000)
    os.truncate(directory.file_of("worse"), 6000)
    with pytest.raises(StoreCorruptError), directory.open("bad"):
        pass
    assert [info.run_id for info in directory.list_runs()] == ["good"]
    assert len(list(directory.path.glob("*.corrupt-*"))) == 2
    with pytest.raises(RunNotFoundError), directory.open("bad"):
        pass


def test_damage_found_while_reading_sets_the_file_aside(directory, make):
    _write(directory, make, "r")
    with pytest.raises(StoreCorruptError), directory.open("r"):
        raise StoreCorruptError("as DuckDB would find it in the middle of a query")
    assert list(directory.path.glob("r.duckdb.corrupt-*"))
    _write(directory, make, "r")
    assert directory.get("r").processes == 1


def test_a_run_is_deleted_when_its_last_reader_is_done(directory, make):
    with directory.open("r", create=True) as store:
        store.commit([make(run_id="r").build()])
        deleting = threading.Thread(target=directory.delete, args=("r", 60.0))
        deleting.start()
        assert directory.file_of("r").exists()
    deleting.join(60)
    assert not directory.file_of("r").exists()


def test_a_run_in_use_cannot_be_deleted(directory, make):
    _write(directory, make, "r")
    with directory.open("r"), pytest.raises(StoreBusyError, match="in use"):
        directory.delete("r")
    directory.delete("r")
    assert list(directory.path.iterdir()) == []


def test_retention_deletes_old_runs_first_and_never_an_open_one(directory, make):
    for age, run_id in enumerate(["newest", "middle", "oldest", "live"]):
        _write(directory, make, run_id)
        directory.close_idle(0.0)
        path = directory.file_of(run_id)
        os.utime(path, (path.stat().st_mtime - age * 1000,) * 2)
    with directory.open("live"):
        assert directory.apply_retention(max_age_s=1500) == ["oldest"]
        assert directory.apply_retention(max_age_s=None, max_total_bytes=None) == []
        size = directory.get("newest").size_bytes
        assert directory.apply_retention(max_total_bytes=size * 5 // 2) == ["middle"]
        assert directory.apply_retention(max_total_bytes=0, max_age_s=0.0) == ["newest"]
    assert [info.run_id for info in directory.list_runs()] == ["live"]


def test_retention_keeps_what_was_written_a_moment_ago(directory, make):
    _write(directory, make, "old")
    _write(directory, make, "current")
    directory.close_idle(0.0)
    path = directory.file_of("old")
    os.utime(path, (path.stat().st_mtime - 1000,) * 2)
    assert directory.apply_retention(max_total_bytes=0, keep_s=300.0) == ["old"]
    assert [info.run_id for info in directory.list_runs()] == ["current"]


def test_an_exported_file_can_be_imported_elsewhere(directory, make, tmp_path):
    _write(directory, make, "weird/id", spans=3)
    target = tmp_path / "shared.duckdb"
    with directory.open("weird/id"):
        directory.export("weird/id", target)
    with pytest.raises(StoreError, match="it already exists"):
        directory.export("weird/id", target)
    other = RunDirectory(tmp_path / "other")
    assert other.import_file(target).run_id == "weird/id"
    with pytest.raises(StoreError, match="already exists"):
        other.import_file(target)
    with other.open("weird/id") as store, store.reader() as cursor:
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(3,)]
    other.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "runs", "shared.duckdb"]


@pytest.mark.parametrize("content", [b"", b"rubbish" * 5000, None], ids=["empty run", "rubbish", "missing"])
def test_what_is_not_a_run_is_not_imported(directory, tmp_path, content):
    source = tmp_path / "source.duckdb"
    if content == b"":
        RunStore(source, create=True).close()
    elif content:
        source.write_bytes(content)
    with pytest.raises(StoreError, match=r"cannot (import|read)"):
        directory.import_file(source)
    assert list(directory.path.glob("*")) == []


def test_export_to_a_place_that_is_not_there_is_a_clear_error(directory, make, tmp_path):
    _write(directory, make, "r")
    with pytest.raises(StoreError, match="cannot export"):
        directory.export("r", tmp_path / "no" / "such" / "place.duckdb")
