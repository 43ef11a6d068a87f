"""A busy writer only records which batches it stored, and updates the rows of their processes a little later."""

from __future__ import annotations

import shutil

import duckdb
import msgspec
import pytest

from rl_insight.store import RunDirectory, RunStore, StoreWriter

_SECOND = 1_000_000_000
_LEDGER = "SELECT low_water, above, last_seen_ns FROM ledger JOIN processes USING (process)"
_TAKEN = "SELECT count(*) FROM taken"


def _batches(make, count):
    maker = make()
    found = []
    for _ in range(count):
        maker.span()
        found.append(maker.build())
    return found


def _commit(store, batch, second, *, settle=False):
    return store.commit([batch], received_ns=[batch.sent_ns + second * _SECOND], settle=settle)


def test_what_was_taken_is_shown_by_the_next_commit_that_settles(store, make, fetch):
    first, second, third = _batches(make, 3)
    _commit(store, first, 1, settle=True)
    _commit(store, second, 1)
    assert not store.is_settled
    assert fetch(store, "SELECT low_water FROM ledger") == [(1,)]
    assert fetch(store, "SELECT count(*) FROM spans") == [(2,)]
    _commit(store, third, 2, settle=True)
    assert store.is_settled
    assert fetch(store, _LEDGER) == [(3, "", third.sent_ns + 2 * _SECOND)]


@pytest.mark.parametrize("change", ["final", "heartbeat", "clock"])
def test_what_queries_depend_on_is_shown_at_once(store, make, fetch, change):
    maker = make()
    _commit(store, maker.build(), 0, settle=True)
    process = maker.process
    if change == "heartbeat":
        maker.process = msgspec.structs.replace(process, heartbeat_s=9.0)
    _commit(store, maker.build(final=change == "final"), -60 if change == "clock" else 0)
    assert store.is_settled
    found = fetch(store, "SELECT final, heartbeat_s, clock_offset_ns < 0 FROM processes")
    assert found == [(change == "final", 9.0 if change == "heartbeat" else process.heartbeat_s, change == "clock")]


def test_killed_before_it_settles_a_run_takes_each_batch_once(tmp_path, store, make, fetch):
    first, second, third = _batches(make, 3)
    _commit(store, first, 1, settle=True)
    _commit(store, third, 1)  # the second one is late
    killed = tmp_path / "killed.duckdb"
    for suffix in ("", ".wal"):  # what kill -9 leaves
        shutil.copyfile(f"{store.path}{suffix}", f"{killed}{suffix}")
    with RunStore(killed, min_free_bytes=0) as again:
        assert again.intake(third.process.process_id).last_seen_ns == third.sent_ns + _SECOND
        assert [_commit(again, batch, 2)[0] for batch in (third, second, first)] == [False, True, False]
        assert fetch(again, "SELECT count(*) FROM spans") == [(3,)]
    with RunStore(killed) as settled:  # closing it did
        assert fetch(settled, _LEDGER) == [(3, "", second.sent_ns + 2 * _SECOND)]


def test_a_commit_that_fails_forgets_nothing_that_was_taken_before(store, make, fetch, monkeypatch):
    first, second, third = _batches(make, 3)
    _commit(store, first, 1, settle=True)
    _commit(store, second, 1)
    with monkeypatch.context() as patch:
        patch.setattr("rl_insight.store.catalog.Catalog.save", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _commit(store, third, 1)
    assert [_commit(store, batch, 2)[0] for batch in (second, third)] == [False, True]
    store.commit([])
    assert fetch(store, _LEDGER) == [(3, "", third.sent_ns + 2 * _SECOND)]


def test_notes_that_the_ledger_has_are_deleted_when_there_are_many(store, make, fetch, monkeypatch):
    monkeypatch.setattr("rl_insight.store.catalog._MAX_TAKEN_ROWS", 3)
    *some, last = _batches(make, 6)
    for batch in some:
        _commit(store, batch, 0)
    assert fetch(store, _TAKEN) == [(5,)]
    _commit(store, last, 0, settle=True)
    assert fetch(store, _TAKEN) == [(0,)]
    assert [_commit(store, batch, 0)[0] for batch in (*some, last)] == [False] * 6


def test_a_file_from_before_these_notes_opens_and_takes_them(tmp_path, make, fetch):
    first, second = _batches(make, 2)
    path = tmp_path / "old.duckdb"
    with RunStore(path, create=True) as store:
        _commit(store, first, 1, settle=True)
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE taken")
    with RunStore(path) as store:
        assert [_commit(store, batch, 2)[0] for batch in (first, second)] == [False, True]
        assert fetch(store, _TAKEN) == [(1,)]


def test_the_writer_settles_a_busy_run_when_nothing_more_arrives(tmp_path, make, fetch, wait_until, monkeypatch):
    monkeypatch.setattr("rl_insight.store.writer._SETTLE_S", 0.05)
    directory = RunDirectory(tmp_path, min_free_bytes=0)
    writer = StoreWriter(directory)
    batches = _batches(make, 40)
    assert writer.submit_all([(batches[0], 1)]).result(30) == [True]
    assert writer.submit_all([(batch, 1) for batch in batches[1:]]).result(30) == [True] * 39
    with directory.open(batches[0].process.run_id) as store:
        wait_until(lambda: fetch(store, "SELECT low_water FROM ledger") == [(40,)])
        assert fetch(store, _TAKEN) == [(39,)]  # it did not settle with the commit
    writer.close()
    directory.close()
