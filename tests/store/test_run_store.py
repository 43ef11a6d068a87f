"""One run's file: exactly once, open spans, damage, full disks, death."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import duckdb
import msgspec
import pytest

from rl_insight.schema import Loss
from rl_insight.store import RunStore, StoreCorruptError, StoreError, StoreFullError, StoreVersionError, queries
from rl_insight.store.errors import RunNotFoundError
from rl_insight.store.tables import ROLLUPS, TABLES, UPGRADES, migrate

HOSTILE = [
    "",
    "'; DROP TABLE span_data; --",
    'quote"s',
    "nul\x00byte",
    "line\nbreak",
    "</script>",
    "日本語 🚀",
    "%_!",
    "x" * 70_000,
]


def test_committed_rows_of_every_kind_are_there_after_reopening(tmp_path, make, fetch):
    maker = make(role="trainer", rank=3, labels={"zone": "a"})
    maker.span(
        "step", start=5, duration=7, step=4, session_id="s", attributes='{"k":1}', error="ValueError", status="error"
    )
    maker.builder.add_event(time_ns=9, name="checkpointed", span_id=1, attributes='{"n":2}')
    maker.builder.add_log(time_ns=11, level=30, message="slow", logger="train")
    maker.sample("reward", 0.5, at=3, labels='{"b":"2","a":"1"}', step=4)
    series = maker.builder.add_series("latency", "histogram", "", "{}")
    maker.builder.add_histogram(
        series, time_ns=4, count=3, total=6.0, minimum=1.0, maximum=3.0, buckets={32767: 1, 32790: 2}
    )
    path = tmp_path / "a.duckdb"
    with RunStore(path, create=True) as store:
        assert store.commit([maker.build(losses=[Loss("spans", "buffer_full", 3)])]) == [True]
    with RunStore(path) as store:
        assert fetch(
            store, "SELECT name, duration_ns, status, error, step, session_id, attributes, role, rank FROM spans"
        ) == [("step", 7, "error", "ValueError", 4, "s", '{"k":1}', "trainer", 3)]
        assert fetch(store, "SELECT name, span_id, attributes FROM events") == [
            ("checkpointed", f"{1:016x}", '{"n":2}')
        ]
        assert fetch(store, "SELECT level, logger, message FROM logs") == [(30, "train", "slow")]
        assert fetch(store, "SELECT name, labels, value, step FROM samples") == [
            ("reward", '{"a":"1","b":"2"}', 0.5, 4)
        ]
        assert fetch(store, "SELECT count, sum, codes, counts FROM histograms") == [(3, 6.0, [32767, 32790], [1, 2])]
        assert fetch(store, "SELECT kind, reason, count FROM losses") == [("spans", "buffer_full", 3)]


def test_replayed_batch_is_counted_once(tmp_path, make, fetch):
    maker = make()
    maker.span()
    first = maker.build()
    maker.span()
    second = maker.build()
    path = tmp_path / "a.duckdb"
    with RunStore(path, create=True) as store:
        assert store.commit([first, first, second]) == [True, False, True]
        assert store.commit([second, first]) == [False, False]
    with RunStore(path) as store:
        assert store.commit([first, second]) == [False, False]
        assert fetch(store, "SELECT count(*) FROM spans") == [(2,)]


def test_any_order_with_repeats_and_reopening_gives_every_batch_once(tmp_path, make, fetch):
    rng = random.Random(5)
    batches = []
    for process in ("a", "b"):
        maker = make(process)
        for _ in range(40):
            maker.span(f"{process}-{maker.sequence}")
            batches.append(maker.build())
    arrivals = batches + rng.choices(batches, k=80)
    rng.shuffle(arrivals)
    new = 0
    while arrivals:
        with RunStore(tmp_path / "a.duckdb", create=True) as store:
            for _ in range(4):
                portion, arrivals = arrivals[:10], arrivals[10:]
                new += sum(store.commit(portion))
    with RunStore(tmp_path / "a.duckdb") as store:
        assert new == 80
        assert fetch(store, "SELECT count(*), count(DISTINCT name) FROM spans") == [(80, 80)]
        assert fetch(store, "SELECT DISTINCT low_water, above FROM ledger") == [(40, "")]


def test_losses_are_totals_not_additions(store, make, fetch):
    maker = make()
    store.commit([maker.build(losses=[Loss("logs", "full", 2)])])
    store.commit([maker.build(losses=[Loss("logs", "full", 5), Loss("logs", "late", 1)])])
    store.commit([maker.build(sequence=9, losses=[Loss("logs", "full", 4)])])
    assert fetch(store, "SELECT reason, count FROM losses ORDER BY reason") == [("full", 5), ("late", 1)]


@pytest.mark.parametrize("settle", [True, False])
def test_names_that_a_process_reports_late_are_stored_and_kept(tmp_path, make, fetch, settle):
    names = "SELECT project, experiment_name FROM processes"
    maker = make()
    path = tmp_path / "run.duckdb"
    with RunStore(path, min_free_bytes=0, create=True) as store:
        store.commit([maker.build()], settle=settle)
        assert fetch(store, names) == [("", "")]
    unnamed = maker.process
    with RunStore(path, min_free_bytes=0) as store:
        maker.process = msgspec.structs.replace(unnamed, project="math", experiment_name="grpo")
        store.commit([maker.build()], settle=settle)
        assert fetch(store, names) == [("math", "grpo")]
        maker.process = unnamed
        store.commit([maker.build()], settle=settle)
        assert fetch(store, names) == [("math", "grpo")]


@pytest.mark.parametrize("apart", [True, False], ids=["two commits", "one commit"])
@pytest.mark.parametrize("late_open", [True, False], ids=["open arrives late", "open arrives first"])
def test_an_open_span_is_completed_in_either_order(tmp_path, make, fetch, apart, late_open):
    maker = make()
    span_id = maker.span("rollout", start=50, duration=-1)
    other = maker.span("stuck", start=60, duration=-1)
    opened = maker.build()
    maker.span("rollout", start=50, duration=900, span_id=span_id)
    ended = maker.build()
    batches = [ended, opened] if late_open else [opened, ended]
    for portion in [[batch] for batch in batches] if apart else [batches]:
        with RunStore(tmp_path / "a.duckdb", create=True) as store:
            store.commit(portion)
    with RunStore(tmp_path / "a.duckdb") as store:
        assert fetch(store, "SELECT name, duration_ns FROM spans") == [("rollout", 900)]
        assert fetch(store, "SELECT span_id, duration_ns FROM open_spans") == [(f"{other:016x}", None)]


def test_open_span_reported_again_is_stored_once_and_equal_ids_of_two_processes_stay_apart(store, make, fetch):
    one, two = make("one"), make("two")
    for maker in (one, two):
        for _ in range(2):
            maker.span("wait", duration=-1, span_id=77)
            store.commit([maker.build()])
    one.span("wait", duration=5, span_id=77)
    store.commit([one.build()])
    assert fetch(store, "SELECT process_id FROM open_spans") == [("two",)]
    assert fetch(store, "SELECT process_id FROM spans") == [("one",)]


@pytest.mark.parametrize("ids", [(2, 3, 4, 5), (2, 13, 204, 205), (2**64 - 1, 7, 300, 2)])
def test_spans_know_their_depth_on_their_lane(store, make, fetch, ids):
    maker = make()
    root = maker.span("root", span_id=1, duration=-1)
    store.commit([maker.build()])
    child = maker.span("child", span_id=ids[0], parent_id=root)
    maker.span("grandchild", span_id=ids[1], parent_id=child)
    maker.span("elsewhere", span_id=ids[2], parent_id=child, lane="other")
    maker.span("of an unseen parent", span_id=ids[3], parent_id=999)
    store.commit([maker.build()])
    assert dict(fetch(store, "SELECT name, depth FROM spans")) == {
        "child": 1,
        "grandchild": 2,
        "elsewhere": 0,
        "of an unseen parent": 1,
    }


def test_a_ring_of_parents_is_stored(store, make, fetch):
    maker = make()
    maker.span("a", span_id=1, parent_id=2)
    maker.span("b", span_id=2, parent_id=1)
    assert store.commit([maker.build()]) == [True]
    assert fetch(store, "SELECT count(*) FROM spans") == [(2,)]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.0, 1e308])
def test_special_gauge_values_survive(store, make, fetch, value):
    maker = make()
    maker.sample("loss", value)
    store.commit([maker.build()])
    ((found,),) = fetch(store, "SELECT value FROM samples")
    assert (math.isnan(found) and math.isnan(value)) or (
        found == value and math.copysign(1, found) == math.copysign(1, value)
    )


@pytest.mark.parametrize("text", HOSTILE, ids=[repr(text[:12]) for text in HOSTILE])
def test_hostile_text_is_stored_as_it_is(store, make, fetch, text):
    maker = make(process_id=text, role=text)
    maker.span(text, lane=text, session_id=text, attributes=text, error=text)
    maker.builder.add_log(time_ns=1, level=20, message=text, logger=text)
    maker.builder.add_event(time_ns=1, name=text)
    maker.sample(text, 1.0, labels=text)
    store.commit([maker.build()])
    assert fetch(store, "SELECT name, lane, session_id, attributes, error, role, process_id FROM spans") == [
        (text,) * 7
    ]
    assert fetch(store, "SELECT message, logger FROM logs") == [(text, text)]
    assert fetch(store, "SELECT name FROM events") == [(text,)]
    assert fetch(store, "SELECT name, labels FROM samples") == [(text, "{}")]


@pytest.mark.parametrize(("start", "duration"), [(-(2**63), 5), (2**63 - 1, 2**63 - 1), (0, -(2**63)), (5, 0)])
def test_absurd_times_are_stored_and_break_no_view(tmp_path, make, fetch, start, duration):
    maker = make()
    maker.builder.add_span(span_id=1, trace=(0, 0), name="x", start_ns=start, duration_ns=duration)
    with RunStore(tmp_path / "a.duckdb", create=True) as store:
        assert store.commit([maker.build()]) == [True]
        assert len(fetch(store, "FROM spans UNION ALL FROM open_spans")) == 1
        assert fetch(store, "SELECT max(start_ns + duration_ns) FROM spans")


def test_a_failed_commit_leaves_no_trace(store, make, fetch, monkeypatch):
    maker = make()
    maker.span("kept")
    maker.sample("m", 1.0)
    first = maker.build()
    maker.span("new name", lane="new lane")
    maker.span("open", duration=-1)
    maker.sample("new metric", 1.0)
    second = maker.build()
    store.commit([first])
    with monkeypatch.context() as patch:
        patch.setattr("rl_insight.store.catalog.Catalog.save", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.commit([second])
    assert fetch(store, "SELECT count(*) FROM spans") == [(1,)]
    assert store.commit([second, first]) == [True, False]
    assert fetch(store, "SELECT name FROM spans ORDER BY name") == [("kept",), ("new name",)]
    assert fetch(store, "SELECT name FROM samples ORDER BY name") == [("m",), ("new metric",)]
    assert fetch(store, "SELECT count(*) FROM open_spans") == [(1,)]


def test_rollups_add_up_to_the_spans_they_cover(store, make, fetch, monkeypatch):
    for module in ("run_store", "rollup"):
        monkeypatch.setattr(f"rl_insight.store.{module}.ROLLUP_ROWS", 50)
    rng = random.Random(1)
    maker = make()
    for _ in range(20):
        for _ in range(17):
            start, duration = rng.randrange(10**12), int(10 ** rng.uniform(3, 13))
            maker.span(rng.choice("abc"), start=start, duration=duration, status=rng.choice(["ok", "error"]))
        store.commit([maker.build()])
    ((covered,),) = fetch(store, "SELECT value::BIGINT FROM meta WHERE key = 'rolled_up_rows'")
    assert covered == 300
    for table, width in ROLLUPS.items():
        ended = "start_ns + duration_ns"
        expected = fetch(
            store,
            "SELECT lane_id, depth, start_ns // $w AS bucket, count(*), min(start_ns), "
            f"max({ended}), sum(duration_ns)::DOUBLE, count(*) FILTER (status = 'error'), max(duration_ns), "
            "arg_max(span_id, duration_ns), arg_max(name_id, duration_ns) FROM span_data "
            "WHERE rowid < $n AND duration_ns < $w GROUP BY ALL ORDER BY ALL",
            {"n": covered, "w": width},
        )
        found = fetch(
            store,
            "SELECT lane_id, depth, start_ns // $w AS bucket, sum(spans), min(start_ns), max(end_ns), sum(busy_ns), "
            "sum(errors), max(longest_ns), arg_max(longest_id, longest_ns), arg_max(longest_name_id, longest_ns) "
            f"FROM {table} GROUP BY ALL ORDER BY ALL",
            {"w": width},
        )
        assert found == expected
        assert sum(row[7] for row in found) > 0


def test_an_empty_file_of_version_0_gets_the_tables(tmp_path):
    path = tmp_path / "v0.duckdb"
    duckdb.connect(str(path)).close()
    with RunStore(path), pytest.raises(StoreError):
        RunStore(tmp_path / "missing" / "directory.duckdb", create=True)


def test_opening_a_mistyped_path_makes_no_run(tmp_path):
    with pytest.raises(RunNotFoundError, match=r"no run file .*typo\.duckdb. Check the path; none was created"):
        RunStore(tmp_path / "typo.duckdb")
    assert list(tmp_path.iterdir()) == []


def test_migrations_run_in_order_and_keep_the_data(tmp_path, make, fetch):
    path = tmp_path / "old.duckdb"
    with RunStore(path, create=True) as store:
        maker = make()
        maker.span("old")
        store.commit([maker.build()])
    steps = (
        *UPGRADES,
        ("ALTER TABLE findings ADD COLUMN link VARCHAR",),
        ("UPDATE names SET name = name || '!'", "CREATE TABLE extra (a INTEGER)"),
    )
    with duckdb.connect(str(path)) as connection:
        assert migrate(connection, steps) == len(UPGRADES) + 1
        assert migrate(connection, steps) == len(steps) + 1
        assert connection.execute("SELECT name FROM spans").fetchall() == [("old!",)]
        assert connection.execute("SELECT link FROM findings").fetchall() == []
    with pytest.raises(StoreVersionError, match=rf"version {len(steps) + 1}.*up to {len(UPGRADES) + 1}"):
        RunStore(path)


@pytest.mark.parametrize("version", range(1, len(UPGRADES) + 1))
def test_a_file_of_an_earlier_version_gets_the_tables_of_a_new_one(tmp_path, old_file, version):
    def columns(path):
        with duckdb.connect(str(path)) as connection:
            return sorted(
                connection.execute("SELECT table_name, column_name, data_type FROM duckdb_columns()").fetchall()
            )

    new = tmp_path / "new.duckdb"
    RunStore(new, create=True).close()
    old = old_file(version)
    RunStore(old).close()
    assert columns(old) == columns(new)
    assert {table for table, _, _ in columns(new)} >= set(TABLES)


def test_a_column_that_a_file_lacks_is_added(tmp_path):
    path = tmp_path / "run.duckdb"
    RunStore(path, create=True).close()
    with duckdb.connect(str(path)) as connection:
        connection.execute("ALTER TABLE sessions DROP COLUMN reward")
        connection.execute("DROP TABLE loss_history")
    with RunStore(path) as store, store.reader() as cursor:
        assert cursor.execute("SELECT reward FROM sessions").fetchall() == []
        assert cursor.execute("FROM loss_history").fetchall() == []


def test_phases_that_were_text_become_a_list(old_file):
    path = old_file(1)
    phases = {
        'odd "name': [{"outcome": "open", "start_ts": 11.0}],
        "generate": [
            {"outcome": "ok", "start_ts": 10.0, "end_ts": 12.0, "span_id": "f00000000000000a", "payload": {"a": [1]}}
        ],
    }
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            "INSERT INTO sessions (session_id, generate_s, phases, phase_seconds) "
            "VALUES ('a', 2.0, $phases, $seconds), ('b', NULL, '{}', '{}')",
            {"phases": json.dumps(phases), "seconds": '{"generate":2.0}'},
        )
    with RunStore(path, create=True) as store, store.reader() as cursor:
        (one, other), _ = queries.sessions(cursor, order="session_id", descending=False)
    assert (one.phases, list(one.phases)) == (phases, ["generate", 'odd "name'])
    assert one.phase_seconds == {"generate": 2.0}
    assert (other.phases, other.phase_seconds) == ({}, {})


def test_a_failing_migration_changes_nothing(tmp_path):
    path = tmp_path / "old.duckdb"
    RunStore(path, create=True).close()
    with duckdb.connect(str(path)) as connection:
        with pytest.raises(duckdb.Error):
            migrate(connection, (*UPGRADES, ("CREATE TABLE extra (a INTEGER)", "SELECT nonsense")))
        connection.execute("ROLLBACK")
    with RunStore(path):
        pass


def _fill(path, make, spans=30_000):
    maker = make()
    rng = random.Random(0)
    with RunStore(path, min_free_bytes=0, create=True) as store:
        for i in range(spans):
            maker.span(
                f"n{i % 7}",
                start=rng.randrange(10**15),
                duration=rng.randrange(10**9),
                attributes=f'{{"i":{rng.random()}}}',
            )
        store.commit([maker.build()])


def _half(path):
    os.truncate(path, path.stat().st_size // 2)


def _garbage(path):
    path.write_bytes(b"this is not a database " * 1000)


def _empty_of_sense(path):
    path.write_bytes(bytes(100_000))


def _scrambled_header(path):
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8192))


def _another_database(path):
    path.unlink()
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE customers (a INTEGER)")


@pytest.mark.parametrize("damage", [_half, _garbage, _empty_of_sense, _scrambled_header, _another_database])
def test_a_damaged_file_is_told_apart(tmp_path, make, damage):
    path = tmp_path / "a.duckdb"
    _fill(path, make)
    damage(path)
    with pytest.raises(StoreCorruptError, match=r"a\.duckdb|not a run file"):
        RunStore(path)


def test_a_file_open_in_another_process_is_busy_not_damaged(tmp_path):
    path = tmp_path / "a.duckdb"
    with RunStore(path, create=True):
        code = f"""
            from pathlib import Path
            from rl_insight.store import RunStore, StoreBusyError
            try:
                RunStore(Path({str(path)!r}))
            except StoreBusyError as error:
                print("busy:", error)
        """
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert "another process has it open" in done.stdout


def test_close_is_idempotent_and_use_after_it_is_a_clear_error(tmp_path, make):
    store = RunStore(tmp_path / "a.duckdb", create=True)
    store.close()
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.commit([make().build()])
    with pytest.raises(StoreError, match="is closed"), store.reader():
        pass


def test_a_reader_sees_one_state_and_cannot_write(store, make):
    maker = make()
    maker.span()
    store.commit([maker.build()])
    with store.reader() as cursor:
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(1,)]
        maker.span()
        store.commit([maker.build()])
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(1,)]
        with pytest.raises(duckdb.Error, match="read-only"):
            cursor.execute("DELETE FROM span_data")


def test_a_copy_made_while_the_run_continues_is_consistent(tmp_path, make, fetch, store):
    maker = make()
    for _ in range(5):
        maker.span()
        store.commit([maker.build()])
    store.copy_to(tmp_path / "copy.duckdb")
    maker.span()
    store.commit([maker.build()])
    with RunStore(tmp_path / "copy.duckdb") as copy:
        assert fetch(copy, "SELECT count(*) FROM spans") == [(5,)]
        assert copy.commit([maker.build(sequence=5), maker.build(sequence=6)]) == [False, True]
    assert not (tmp_path / "copy.duckdb.wal").exists()


@pytest.fixture
def commit_while_copying(make, store, monkeypatch):
    """Let each copy of the run file wait for one more commit, and for what else is given."""
    maker = make()
    for sequence in range(1, 6):
        maker.span(span_id=sequence)
        store.commit([maker.build(sequence=sequence)])
    os.utime(store.path, (1_000_000_000, 1_000_000_000))  # written long ago
    copyfile, late = shutil.copyfile, [6]

    def let(also=lambda: None):
        def commit():
            maker.span(span_id=6)
            store.commit([maker.build(sequence=late.pop())])
            also()

        def copy(source, target):
            copied = copyfile(source, target)
            if source == store.path and late:
                thread = threading.Thread(target=commit, daemon=True)
                thread.start()
                thread.join(10)
                assert not thread.is_alive(), "the commit waits for the copy"
            return copied

        monkeypatch.setattr(shutil, "copyfile", copy)

    return let


def test_commits_do_not_wait_until_the_file_is_copied(tmp_path, fetch, store, commit_while_copying):
    commit_while_copying()
    store.copy_to(tmp_path / "copy.duckdb")
    with RunStore(tmp_path / "copy.duckdb") as copy:
        assert fetch(copy, "SELECT span_id FROM spans ORDER BY ALL") == fetch(
            store, "SELECT span_id FROM spans ORDER BY ALL"
        )
        assert fetch(copy, "SELECT count(*) FROM spans") == [(6,)]


def test_a_file_that_a_checkpoint_rewrites_is_copied_again(tmp_path, fetch, store, commit_while_copying):
    commit_while_copying(also=lambda: store._connection.execute("CHECKPOINT"))
    store.copy_to(tmp_path / "copy.duckdb")
    with RunStore(tmp_path / "copy.duckdb") as copy:
        assert fetch(copy, "SELECT count(*) FROM spans") == [(6,)]


def test_too_little_room_refuses_before_anything_is_written(tmp_path, make, fetch):
    with RunStore(tmp_path / "a.duckdb", min_free_bytes=2**62, create=True) as store:
        with pytest.raises(StoreFullError, match="Free some space"):
            store.commit([make().build()])
        assert not store.broken


_WRITE_UNTIL_FULL = """
import resource, sys
from pathlib import Path
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunStore, StoreFullError
import random, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
process = Process(process_id="p", run_id="r", host="h", pid=1)

def batch(sequence):
    rng = random.Random(sequence)
    builder = BatchBuilder()
    for i in range(2000):
        builder.add_span(span_id=rng.getrandbits(63) + 1, trace=(1, rng.getrandbits(60)), name="n",
                         start_ns=rng.getrandbits(55),
                         duration_ns=rng.getrandbits(40), attributes=str(rng.random()))
    return builder.build(process, sequence=sequence, sent_ns=1)

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, hard))
store = RunStore(path, min_free_bytes=0, checkpoint_bytes=1_000_000, create=True)
written = []
failed = 0
for sequence in range(1, 60):
    try:
        store.commit([batch(sequence)])
        written.append(sequence)
    except StoreFullError as error:
        failed = sequence
        assert "disk is full" in str(error), error
        break
assert failed, "it never was full"
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
if store.broken:
    store.close()
    store = RunStore(path, min_free_bytes=0)
with store.reader() as cursor:
    ((rows,),) = cursor.execute("SELECT count(*) FROM spans").fetchall()
assert rows == 2000 * len(written), (rows, len(written))
assert store.commit([batch(s) for s in [*written, failed]]) == [False] * len(written) + [True]
store.close()
print("fine", len(written))
"""


def test_a_full_disk_leaves_nothing_half_written_and_it_works_again_with_room(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", _WRITE_UNTIL_FULL, str(tmp_path / "a.duckdb")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("fine"), done.stderr


_WRITE_FOR_EVER = """
import sys
from pathlib import Path
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunStore
store = RunStore(Path(sys.argv[1]), min_free_bytes=0, checkpoint_bytes=500_000, create=True)
process = Process(process_id="p", run_id="r", host="h", pid=1)
sequence = int(sys.argv[2])
while True:
    sequence += 1
    builder = BatchBuilder()
    for i in range(500):
        number = sequence * 1000 + i
        builder.add_span(span_id=number, trace=(1, 1), name=f"n{i % 5}", start_ns=number, duration_ns=5)
    assert store.commit([builder.build(process, sequence=sequence, sent_ns=1)]) == [True]
    print(sequence, flush=True)
"""


def test_everything_acknowledged_survives_kill_minus_9_exactly_once(tmp_path, fetch):
    path = tmp_path / "a.duckdb"
    acknowledged = 0
    for round_ in range(4):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITE_FOR_EVER, str(path), str(acknowledged)], stdout=subprocess.PIPE, text=True
        )
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged >= (round_ + 1) * 25:
                break
        writer.send_signal(signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.endswith("\n"))])
        writer.wait()
        writer.stdout.close()
        with RunStore(path, create=True) as store:
            ((low, above),) = fetch(store, "SELECT low_water, above FROM ledger")
            assert low >= acknowledged
            assert above == ""
            found = fetch(store, "SELECT count(*), count(DISTINCT span_id) FROM span_data")
            assert found == [(500 * low, 500 * low)]
            acknowledged = low


def test_statements_draw_no_progress_bar(store, fetch):
    """DuckDB would print one to the standard output of the server or the command."""
    setting = "SELECT current_setting('enable_progress_bar')"
    assert fetch(store, setting) == [(False,)]
    with store.writing() as connection:
        assert connection.execute(setting).fetchall() == [(False,)]
