"""The warehouse export: everything in a run's store, each row once."""

from __future__ import annotations

import duckdb
import pytest

from rl_insight.collector import Collector, SinkContext
from rl_insight.collector.series import SeriesTable
from rl_insight.errors import ConfigError
from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.warehouse import ParquetSink, export
from rl_insight.exchange.warehouse.files import ParquetFolder
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store.runs import RunDirectory

HOUR = 3_600_000_000_000
BEGIN = 1_760_000_000_000_000_000 // HOUR * HOUR


def _batch(sequence, *, status="accepted", run_id="a/b", process="p1"):
    """Return a batch with rows in every table, in two hours."""
    builder = BatchBuilder()
    for number in range(2):
        now = BEGIN + number * HOUR + sequence
        builder.add_span(span_id=sequence * 10 + number + 1, trace=(1, sequence), name="a", start_ns=now, duration_ns=5)
        builder.add_log(time_ns=now, level=20, message=f"line {sequence}.{number}")
        builder.add_event(time_ns=now, name="mark")
        builder.add_sample(builder.add_series("loss", "gauge", "", "{}"), time_ns=now, value=0.5)
    record = f'{{"session_id":"s{sequence}","submit_ts":{BEGIN / 1e9}}}'
    builder.add_session(session_id=f"s{sequence}", status=status, time_ns=BEGIN + sequence, record=record)
    who = Process(process_id=process, run_id=run_id, host="h", pid=1, role="actor", rank=0)
    return builder.build(who, sequence=sequence, sent_ns=BEGIN)


@pytest.fixture
def runs(tmp_path):
    directory = RunDirectory(tmp_path / "data", min_free_bytes=0)
    yield directory
    directory.close()


@pytest.fixture
def commit(runs):
    def commit(*batches):
        for batch in batches:
            with runs.open(batch.process.run_id, create=True) as store:
                store.commit([batch])

    return commit


@pytest.fixture
def make_sink(runs):
    def make(url):
        sink = ParquetSink(str(url))
        sink.attach(SinkContext("", 0, SeriesTable(), [], runs))
        return sink

    return make


def read(folder, table, columns):
    sql = f"SELECT {columns} FROM read_parquet('{folder}/{table}/**/*.parquet', hive_partitioning = true) ORDER BY ALL"
    return duckdb.sql(sql).fetchall()


def counts(folder):
    found = {}
    for path in sorted(folder.iterdir()):
        ((rows, distinct),) = duckdb.sql(
            f"SELECT count(*), count(DISTINCT part) FROM (SELECT part FROM read_parquet('{path}/**/*.parquet') AS part)"
        ).fetchall()
        found[path.name] = (rows, distinct)
    return found


def test_everything_is_exported_by_run_and_hour(tmp_path, commit, make_sink):
    commit(_batch(1), _batch(2))
    sink = make_sink(tmp_path / "out")
    sink.write(_batch(2))
    sink.flush()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "events", "logs", "samples", "sessions", "spans",
    ]  # fmt: skip
    assert read(tmp_path / "out", "spans", "run, hour, name, role") == [
        ("a/b", hour, "a", "actor") for hour in ("2025-10-09T08", "2025-10-09T09") for _ in range(2)
    ]
    assert read(tmp_path / "out", "logs", "message") == [(f"line {n}",) for n in ("1.0", "1.1", "2.0", "2.1")]
    assert read(tmp_path / "out", "sessions", "session_id, status") == [("s1", "accepted"), ("s2", "accepted")]
    assert sink.get_status()["rows"] == {"spans": 4, "events": 4, "logs": 4, "samples": 4, "sessions": 2}


def test_later_exports_add_what_is_new(tmp_path, commit, make_sink):
    sink = make_sink(tmp_path / "out")
    for sequence in (1, 2, 3):
        commit(_batch(sequence))
        sink.write(_batch(sequence))
        sink.flush()
        sink.flush()
    commit(_batch(3))  # again: a duplicate
    sink.write(_batch(3))
    sink.flush()
    assert counts(tmp_path / "out") == dict.fromkeys(("events", "logs", "samples", "spans"), (6, 6)) | {
        "sessions": (3, 3)
    }


@pytest.mark.parametrize("fails_at", range(1, 10))
def test_an_export_that_is_interrupted_anywhere_leaves_each_row_once(
    tmp_path, commit, make_sink, monkeypatch, fails_at
):
    commit(_batch(1), _batch(2, status="pending"))
    calls = 0

    def interrupt(original):
        def call(*arguments):
            nonlocal calls
            calls += 1
            if calls == fails_at:
                original(*arguments) if fails_at % 2 else None
                raise OSError("the process is killed")
            return original(*arguments)

        return call

    with monkeypatch.context() as patched:
        patched.setattr(ParquetFolder, "put", interrupt(ParquetFolder.put))
        patched.setattr(export, "_note", interrupt(export._note))
        with pytest.raises(OSError, match="killed"):
            make_sink(tmp_path / "out").flush()
    commit(_batch(2, process="p2"), _batch(3))  # more arrives before the next server exports
    make_sink(tmp_path / "out").flush()
    assert counts(tmp_path / "out") == dict.fromkeys(("events", "logs", "samples", "spans"), (8, 8)) | {
        "sessions": (3, 3)
    }


def test_a_session_that_ends_otherwise_later_is_exported_again(tmp_path, commit, make_sink):
    commit(_batch(1, status="lost"))
    make_sink(tmp_path / "out").flush()
    builder = BatchBuilder()
    builder.add_session(session_id="s1", status="accepted", time_ns=BEGIN + 9, record='{"session_id":"s1"}')
    commit(builder.build(_batch(1).process, sequence=2, sent_ns=BEGIN))
    make_sink(tmp_path / "out").flush()
    make_sink(tmp_path / "out").flush()
    assert read(tmp_path / "out", "sessions", "session_id, status") == [("s1", "accepted"), ("s1", "lost")]


def test_what_a_server_before_left_behind_is_exported(tmp_path, commit, make_sink):
    commit(_batch(1, run_id="old"), _batch(1, run_id="new"))
    sink = make_sink(tmp_path / "out")
    sink.write(_batch(1, run_id="new"))
    sink.flush()
    assert [run for (run,) in read(tmp_path / "out", "spans", "DISTINCT run")] == ["new", "old"]


def test_what_was_left_behind_is_exported_at_the_start(tmp_path, runs, commit):
    commit(_batch(1, run_id="old"))
    collector = Collector([ParquetSink(str(tmp_path / "out"), interval_s=3600.0)], runs=runs)
    assert collector.wait_idle(60.0)
    collector.close()
    assert [run for (run,) in read(tmp_path / "out", "spans", "DISTINCT run")] == ["old"]


def test_two_targets_are_exported_independently(tmp_path, commit, make_sink):
    commit(_batch(1))
    for name in ("first", "second"):
        make_sink(tmp_path / name).flush()
    assert counts(tmp_path / "first") == counts(tmp_path / "second")


def test_files_go_to_any_file_system_that_fsspec_knows(commit, make_sink):
    fsspec = pytest.importorskip("fsspec")
    commit(_batch(1))
    make_sink("memory://warehouse").flush()
    names = fsspec.filesystem("memory").find("/warehouse/spans")
    assert len(names) == 2
    assert all(name.endswith(".parquet") for name in names)


def test_a_hub_has_nothing_to_export():
    sink = ParquetSink("/nowhere")
    sink.write(_batch(1))
    with pytest.raises(ExchangeError, match="needs a server"):
        sink.flush()


@pytest.mark.parametrize(
    ("options", "problem"), [({"url": "nothing://x"}, "nothing"), ({"url": "x", "interval_s": 0}, "0")]
)
def test_wrong_options_stop_the_start(options, problem):
    with pytest.raises(ConfigError, match=problem):
        ParquetSink(**options)
