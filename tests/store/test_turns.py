"""Opening, listing and closing one run's file never delays the commits of the others."""

from __future__ import annotations

import random
import threading
import time
from functools import partial

import pytest

from rl_insight.store import RunDirectory, RunNotFoundError, StoreBusyError, StoreError, open_files, runs

ENDLESS = "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b WHERE (a.range + b.range) % 7 = 9"
LONG_S = 60.0


@pytest.fixture
def directory(tmp_path, make):
    """A directory with two runs, of which no file is open and none was listed."""
    written = RunDirectory(tmp_path, min_free_bytes=0)
    for run_id in ("a", "b"):
        commit(written, make, run_id)
    written.close()
    (tmp_path / "runs" / ".index.json").unlink()
    opened = RunDirectory(tmp_path, min_free_bytes=0)
    yield opened
    opened.close()


def commit(directory, make, run_id, process_id="p"):
    maker = make(process_id=process_id, run_id=run_id)
    maker.span("work")
    with directory.open(run_id, create=True) as store:
        return store.commit([maker.build()])


class SlowReading:
    """Makes the first reading of a file's information take forever, unless it is interrupted."""

    def __init__(self, monkeypatch, module):
        self.has_begun = threading.Event()
        self.readings = 0
        self._read = module.read_info
        monkeypatch.setattr(module, "read_info", self)

    def __call__(self, cursor, shown, run_id, earlier=None):
        self.readings += 1
        if self.readings == 1:
            self.has_begun.set()
            cursor.execute(ENDLESS).fetchall()
        return self._read(cursor, shown, run_id, earlier)


def started(target, *args):
    thread = threading.Thread(target=target, args=args, daemon=True)
    thread.start()
    return thread


def test_a_listing_that_reads_a_file_delays_no_commit(directory, make, monkeypatch):
    reading = SlowReading(monkeypatch, runs)
    found = []
    listing = started(lambda: found.extend(directory.list_runs()))
    assert reading.has_begun.wait(LONG_S)
    assert commit(directory, make, "b", process_id="q") == [True]
    assert listing.is_alive()
    assert commit(directory, make, "a", process_id="q") == [True]  # of the run that is being read
    listing.join(LONG_S)
    assert {info.run_id for info in found} == {"a", "b"}
    assert {info.run_id: info.processes for info in directory.list_runs()} == {"a": 2, "b": 2}
    assert not list(directory.path.glob("*.corrupt-*"))


def test_a_file_that_is_being_closed_delays_no_commit(directory, make, monkeypatch):
    assert commit(directory, make, "a", process_id="q") == [True]
    reading = SlowReading(monkeypatch, open_files)
    closing = started(directory.close_idle, 0.0)
    assert reading.has_begun.wait(LONG_S)
    assert commit(directory, make, "b", process_id="q") == [True]
    assert closing.is_alive()
    assert commit(directory, make, "a", process_id="r") == [True]
    closing.join(LONG_S)
    assert {info.run_id: info.processes for info in directory.list_runs()} == {"a": 3, "b": 2}


def test_a_file_that_is_being_opened_delays_no_commit_of_another_run(directory, make, monkeypatch):
    is_opening, may_open = threading.Event(), threading.Event()
    open_store = RunDirectory._store

    def slow(self, path, *, create=False):
        if path.name == "a.duckdb":
            is_opening.set()
            assert may_open.wait(LONG_S)
        return open_store(self, path, create=create)

    monkeypatch.setattr(RunDirectory, "_store", slow)
    committed = []
    first = started(lambda: committed.append(commit(directory, make, "a", process_id="q")))
    assert is_opening.wait(LONG_S)
    second = started(lambda: committed.append(commit(directory, make, "a", process_id="r")))
    assert commit(directory, make, "b", process_id="q") == [True]
    assert committed == []
    may_open.set()
    for thread in (first, second):
        thread.join(LONG_S)
    assert committed == [[True], [True]]
    assert directory.get("a").processes == 3


def test_a_run_is_deleted_while_it_is_being_listed(directory, monkeypatch):
    reading = SlowReading(monkeypatch, runs)
    found = []
    listing = started(lambda: found.extend(directory.list_runs()))
    assert reading.has_begun.wait(LONG_S)
    directory.delete("a")
    listing.join(LONG_S)
    assert [info.run_id for info in found] == ["b"]


def test_closing_the_directory_ends_a_listing(directory, monkeypatch):
    reading = SlowReading(monkeypatch, runs)
    listing = started(directory.list_runs)
    assert reading.has_begun.wait(LONG_S)
    directory.close()
    listing.join(LONG_S)
    assert not listing.is_alive()
    with pytest.raises(StoreError, match="closed"), directory.open("a"):
        pass


def test_everything_at_once_loses_no_commit(tmp_path, make):
    directory = RunDirectory(tmp_path, max_open=2, min_free_bytes=0)
    names = [f"run-{number}" for number in range(4)]
    stop, problems = threading.Event(), []
    committed = dict.fromkeys(names, 0)

    def repeated(action):
        def run():
            try:
                while not stop.is_set():
                    action()
            except Exception as error:
                problems.append(error)
                stop.set()

        return started(run)

    def write(name):
        assert commit(directory, make, name, process_id=f"{name}-{committed[name]}") == [True]
        committed[name] += 1

    def delete():
        commit(directory, make, "deleted")
        try:
            directory.delete("deleted", 10.0)
        except (RunNotFoundError, StoreBusyError) as error:
            problems.append(error)
        time.sleep(0.05)

    def look():
        try:
            with directory.open(random.choice(names)) as store, store.reader() as cursor:
                cursor.execute("SELECT count(*) FROM spans").fetchall()
        except RunNotFoundError:
            pass

    threads = [repeated(partial(write, name)) for name in names]
    listed = []
    threads += [
        repeated(lambda: listed.extend(info.problem for info in directory.list_runs())),
        repeated(lambda: directory.close_idle(0.0)),
        repeated(delete),
        repeated(look),
    ]
    stop.wait(3.0)
    stop.set()
    for thread in threads:
        thread.join(LONG_S)
    assert problems == []
    assert set(listed) <= {""}
    found = {info.run_id: info.processes for info in directory.list_runs()}
    assert found == {name: count for name, count in committed.items() if count}
    assert len(directory.open_runs()) <= 2
    assert not list(directory.path.glob("*.corrupt-*"))
    directory.close()
