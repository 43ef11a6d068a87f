"""When processes started, fell silent, came back and ended, and when they lost records."""

from __future__ import annotations

from rl_insight.schema import Loss
from rl_insight.store import RunStore

SECOND = 1_000_000_000


def test_the_states_of_a_process_are_kept_with_their_times(tmp_path, make, fetch):
    maker = make(heartbeat_s=1.0)
    path = tmp_path / "run.duckdb"
    with RunStore(path, min_free_bytes=0, create=True) as store:
        for at in (10, 12, 20):
            store.commit([maker.build()], received_ns=[at * SECOND])
    with RunStore(path, min_free_bytes=0) as store:
        store.commit([maker.build(), maker.build(final=True)], received_ns=[21 * SECOND, 22 * SECOND])
        states = fetch(store, "SELECT time_ns // 1000000000, state FROM process_states ORDER BY time_ns")
    assert states == [(10, "live"), (15, "silent"), (20, "live"), (22, "ended")]


def test_losses_are_kept_as_they_grow(tmp_path, make, fetch):
    maker = make()
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        for at, count in ((1, 3), (2, 3), (3, 8)):
            store.commit([maker.build(losses=[Loss("spans", "buffer_full", count)])], received_ns=[at * SECOND])
        history = fetch(store, "SELECT time_ns // 1000000000, kind, reason, count FROM loss_history ORDER BY time_ns")
    assert history == [(1, "spans", "buffer_full", 3), (3, "spans", "buffer_full", 8)]


def test_imports_leave_no_history(tmp_path, make, fetch):
    maker = make()
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        batch = maker.build(losses=[Loss("spans", "buffer_full", 1)])
        batch.sent_ns = 0
        store.commit([batch])
        assert fetch(store, "SELECT count(*) FROM process_states") == [(0,)]
        assert fetch(store, "SELECT count(*) FROM loss_history") == [(0,)]
