"""The writer: acknowledges after the commit, bounds its queue, survives errors."""

from __future__ import annotations

import shutil
import threading

import pytest

from rl_insight.errors import SchemaError
from rl_insight.store import (
    RunDirectory,
    RunStore,
    StoreError,
    StoreFullError,
    StoreOverloadedError,
    StoreWriter,
    run_store,
)
from rl_insight.store.tables import UPGRADES


class Submitted:
    """One submitted batch and its outcome; a refusal is raised immediately."""

    def __init__(self, writer, batch, size):
        self._future = writer.submit_all([(batch, size)])
        self.cancel = self._future.cancel
        if self._future.done() and (refusal := self.exception()) is not None:
            raise refusal

    def result(self, timeout=None):
        (one,) = self._future.result(timeout)
        if isinstance(one, Exception):
            raise one
        return one

    def exception(self, timeout=None):
        (one,) = self._future.result(timeout)
        return one if isinstance(one, Exception) else None


@pytest.fixture
def directory(tmp_path):
    opened = RunDirectory(tmp_path, min_free_bytes=0)
    yield opened
    opened.close()


@pytest.fixture
def writer(directory):
    started = StoreWriter(directory)
    yield started
    started.close()


@pytest.fixture
def poison(monkeypatch):
    """The name of a span that cannot be stored."""
    convert = run_store.texts_of

    def fail_on_poison(gathered):
        if "poison" in gathered.strings:
            raise RuntimeError("cannot be converted")
        return convert(gathered)

    monkeypatch.setattr(run_store, "texts_of", fail_on_poison)
    return "poison"


@pytest.fixture
def held(directory, make, monkeypatch):
    """Hold every commit until the event is set."""
    gate = threading.Event()
    commit = RunStore.commit

    def wait_then_commit(self, *args, **kwargs):
        gate.wait(30)
        return commit(self, *args, **kwargs)

    monkeypatch.setattr(RunStore, "commit", wait_then_commit)
    yield gate
    gate.set()


def _count(directory, run_id):
    with directory.open(run_id) as store, store.reader() as cursor:
        return cursor.execute("SELECT count(*) FROM spans").fetchall()[0][0]


def test_a_future_is_done_only_when_the_batch_is_in_the_file(directory, writer, make):
    maker = make()
    maker.span()
    batch = maker.build()
    assert Submitted(writer, batch, 100).result(20) is True
    assert _count(directory, "run") == 1
    assert Submitted(writer, batch, 100).result(20) is False
    assert _count(directory, "run") == 1


def test_batches_of_many_runs_and_threads_all_arrive_once(directory, writer, make):
    futures = []
    lock = threading.Lock()

    def produce(number):
        maker = make(process_id=f"p{number}", run_id=f"run{number % 3}")
        for _ in range(20):
            maker.span()
            batch = maker.build()
            for _ in range(2):
                future = Submitted(writer, batch, 50)
                with lock:
                    futures.append(future)

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(future.result(30) for future in futures) == 120
    assert [_count(directory, f"run{number}") for number in range(3)] == [40, 40, 40]
    status = writer.get_status()
    assert (status.committed_batches, status.duplicate_batches) == (120, 120)
    assert status.commits < 240


def test_waiting_batches_are_committed_together(directory, held, make):
    writer = StoreWriter(directory)
    maker = make()
    futures = [Submitted(writer, maker.build(), 10) for _ in range(50)]
    held.set()
    assert all(future.result(20) for future in futures)
    assert writer.get_status().commits <= 3
    writer.close()


def test_past_the_bound_submit_refuses_and_says_when_to_come_back(directory, held, make, wait_until):
    writer = StoreWriter(directory, max_pending_bytes=1000)
    maker = make()
    accepted = [Submitted(writer, maker.build(), 400) for _ in range(2)]
    with pytest.raises(StoreOverloadedError) as refused:
        Submitted(writer, maker.build(), 400)
    assert refused.value.retry_after_s > 0
    status = writer.get_status()
    assert (status.pending_bytes, status.pending_batches) == (800, 2)
    assert status.refused_batches == 1
    wait_until(lambda: writer.get_status().lag_s > 0)
    held.set()
    assert all(future.result(20) for future in accepted)
    wait_until(lambda: writer.get_status().pending_bytes == 0)
    assert Submitted(writer, maker.build(), 400).result(20)
    writer.close()


def test_a_single_batch_larger_than_the_bound_still_goes_through(directory, make):
    writer = StoreWriter(directory, max_pending_bytes=10)
    assert Submitted(writer, make().build(), 5000).result(20) is True
    writer.close()


def test_close_writes_what_waits_and_then_refuses(directory, make):
    writer = StoreWriter(directory, linger_s=5.0)
    maker = make()
    futures = [Submitted(writer, maker.build(), 10) for _ in range(5)]
    assert writer.close() is True
    assert writer.close() is True
    assert [future.result(0) for future in futures] == [True] * 5
    with pytest.raises(StoreError, match="closing"):
        Submitted(writer, maker.build(), 10)


def test_one_bad_batch_does_not_affect_its_neighbors(directory, held, make, poison):
    writer = StoreWriter(directory)
    good, bad = make("good"), make("bad")
    bad.span(poison)
    good.span()
    futures = [Submitted(writer, good.build(), 10), Submitted(writer, bad.build(), 10)]
    good.span()
    futures.append(Submitted(writer, good.build(), 10))
    held.set()
    assert futures[0].result(20) is True
    assert futures[2].result(20) is True
    with pytest.raises(SchemaError, match="cannot be stored: cannot be converted"):
        futures[1].result(20)
    assert writer.get_status().failed_batches == 1
    assert _count(directory, "run") == 2
    writer.close()


def test_many_bad_batches_among_many_good_ones_are_all_found(directory, held, make, poison):
    writer = StoreWriter(directory)
    makers = [make(f"p{number}") for number in range(20)]
    for number, maker in enumerate(makers):
        maker.span(poison if number % 7 == 3 else "good")
    futures = [Submitted(writer, maker.build(), 10) for maker in makers]
    held.set()
    refused = [number for number, future in enumerate(futures) if future.exception(30) is not None]
    assert refused == [3, 10, 17]
    assert all(isinstance(futures[number].exception(), SchemaError) for number in refused)
    assert _count(directory, "run") == 17
    writer.close()


def test_a_failure_that_is_not_the_batchs_own_is_not_held_against_it(directory, make, monkeypatch):
    writer = StoreWriter(directory)
    maker = make()
    maker.span()
    batch = maker.build()
    commit = RunStore.commit

    def fail(_self, *_args, **_kwargs):
        raise RuntimeError("the store is unwell")

    monkeypatch.setattr(RunStore, "commit", fail)
    with pytest.raises(StoreError, match="unwell"):
        Submitted(writer, batch, 10).result(20)
    monkeypatch.setattr(RunStore, "commit", commit)
    assert Submitted(writer, batch, 10).result(20) is True
    writer.close()


def test_a_failure_that_passes_costs_nothing(directory, make, monkeypatch):
    writer = StoreWriter(directory)
    maker = make()
    maker.span()
    commit = RunStore.commit
    failures = [RuntimeError("only once")]

    def fail_once(self, batches, **kwargs):
        if batches and failures:
            raise failures.pop()
        return commit(self, batches, **kwargs)

    monkeypatch.setattr(RunStore, "commit", fail_once)
    assert Submitted(writer, maker.build(), 10).result(20) is True
    writer.close()


def test_a_full_disk_fails_the_futures_and_the_same_batches_are_taken_later(tmp_path, make):
    full = RunDirectory(tmp_path, min_free_bytes=2**62)
    writer = StoreWriter(full)
    maker = make()
    maker.span()
    batch = maker.build()
    with pytest.raises(StoreFullError, match="Free some space"):
        Submitted(writer, batch, 10).result(20)
    assert "free" in writer.get_status().last_error
    full._min_free_bytes = 0
    full.close_idle(0.0)
    assert Submitted(writer, batch, 10).result(20) is True
    assert _count(full, "run") == 1
    writer.close()
    full.close()


def test_a_damaged_file_is_replaced_without_losing_what_arrives(directory, writer, make):
    maker = make()
    maker.span()
    Submitted(writer, maker.build(), 10).result(20)
    directory.close_idle(0.0)
    directory.file_of("run").write_bytes(b"rubbish" * 4000)
    maker.span()
    assert Submitted(writer, maker.build(), 10).result(20) is True
    assert _count(directory, "run") == 1
    assert list(directory.path.glob("*.corrupt-*"))


def test_a_cancelled_submission_leaves_the_others_alone(directory, held, make):
    writer = StoreWriter(directory, linger_s=0.3)
    maker = make()
    maker.span()
    first = Submitted(writer, maker.build(), 10)
    maker.span()
    second = Submitted(writer, maker.build(), 10)
    assert second.cancel()
    held.set()
    assert first.result(20) is True
    assert writer.close()
    assert _count(directory, "run") == 1
    assert writer.get_status().pending_bytes == 0


def test_the_hook_hears_of_each_commit_after_it_is_visible_and_cannot_stop_the_writer(directory, make, fetch):
    heard = []

    def publish(run_id, committed):
        with directory.open(run_id) as store:
            stored = fetch(store, "SELECT count(*) FROM spans")[0][0]
        heard.append((run_id, stored, [(one.batch.sequence, one.size, one.new) for one in committed]))
        assert all(one.intake.ledger.low_water == one.batch.sequence for one in committed)
        raise RuntimeError("a sink is broken")

    writer = StoreWriter(directory, on_commit=publish)
    maker = make()
    maker.span()
    batch = maker.build()
    assert Submitted(writer, batch, 10).result(20) is True
    assert Submitted(writer, batch, 20).result(20) is False
    assert Submitted(writer, maker.build(), 30).result(20) is True
    assert writer.close()
    assert heard == [("run", 1, [(1, 10, True)]), ("run", 1, [(1, 20, False)]), ("run", 1, [(2, 30, True)])]


@pytest.mark.parametrize("version", range(len(UPGRADES) + 1))
def test_a_file_that_was_brought_up_to_date_and_killed_at_once_opens_again(tmp_path, make, old_file, version):
    path, killed = old_file(version), tmp_path / "killed.duckdb"
    maker = make()
    maker.span()
    with RunStore(path, min_free_bytes=0, create=True) as store:
        store.commit([maker.build()])
        # What kill -9 leaves: a log that holds everything since the file was opened.
        for suffix in ("", ".wal"):
            shutil.copyfile(f"{path}{suffix}", f"{killed}{suffix}")
    with RunStore(killed, min_free_bytes=0) as store, store.reader() as cursor:
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(1,)]


def test_a_request_whose_sender_is_gone_does_not_end_the_writer(directory, make):
    writer = StoreWriter(directory, linger_s=0.2)
    try:
        gone = [(make(process_id=name, run_id="r").build(), 10) for name in ("p", "q")]
        assert writer.submit_all(gone).cancel()
        kept = make(process_id="kept", run_id="r")
        kept.span("work")
        assert writer.submit_all([(kept.build(), 10)]).result(20) == [True]
    finally:
        assert writer.close()
    assert directory.get("r").processes == 1
