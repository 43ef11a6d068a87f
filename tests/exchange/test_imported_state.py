"""An imported recording has ended: nothing in it is live, and the original is never stored again."""

from __future__ import annotations

import time
from io import BytesIO
from threading import Event

import pytest

from rl_insight.exchange.exporting.exporter import export_run
from rl_insight.exchange.importing.destinations import ServerAnswer, ServerDestination, StoreDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.schema import BatchBuilder, Process, decode, read_frames
from rl_insight.store import queries
from rl_insight.store.run_store import RunStore
from rl_insight.store.runs import RunDirectory
from rl_insight.store.writer import StoreWriter

FORMATS = ("jsonl", "rli", "otlp", "chrome")
SUFFIX = {"otlp": "json", "chrome": "json"}


def _recorded(steps=5):
    """Return a batch as a live process sends it."""
    builder = BatchBuilder()
    begin = time.time_ns() - 60_000_000_000
    for step in range(steps):
        builder.add_span(
            span_id=step + 1, trace=(1, step + 1), name="update", start_ns=begin + step * 1_000_000_000,
            duration_ns=900_000_000, segment="state_interval", step=step,
        )  # fmt: skip
    builder.add_session(session_id="s1", status="pending", time_ns=begin, record='{"submit_ts": 1767225600.0}')
    trainer = Process(process_id="trainer-0", run_id="r1", host="node", pid=1, role="trainer", rank=0)
    return builder.build(trainer, sequence=1, sent_ns=time.time_ns())


@pytest.fixture
def export(tmp_path):
    """Return a function that writes a run in a format and returns the file."""

    def write(file_format):
        path = tmp_path / f"run.{SUFFIX.get(file_format, file_format)}"
        with RunStore(tmp_path / "original.duckdb", min_free_bytes=0, create=True) as store:
            store.commit([_recorded()])
            export_run(store, file_format, path)
        return path

    return write


@pytest.fixture
def runs(tmp_path):
    directory = RunDirectory(tmp_path / "data")
    yield directory
    directory.close()


def _import(path, runs, tmp_path, **options):
    importer = Importer(StoreDestination(runs), data_dir=tmp_path / "data", **options)
    importer.add(path)
    return importer.summary()


@pytest.mark.parametrize("file_format", FORMATS)
def test_an_imported_run_has_ended(export, runs, tmp_path, file_format):
    _import(export(file_format), runs, tmp_path, run_id="again")
    (info,) = runs.list_runs()
    assert info.state == "ended"
    with runs.open("again") as store:
        with store.reader() as cursor:
            found = queries.processes(cursor, time.time_ns())
            before = queries.summary(cursor)
        assert {one.state for one in found} == {"ended"}
        assert {one.clock_offset_ns for one in found} == {0}
        # Its sessions are as they were recorded: the import says nothing about processes that are gone.
        assert queries.close_lost_sessions(store, time.time_ns() + 10**15) == []
        with store.reader() as cursor:
            assert queries.summary(cursor) == before


@pytest.mark.parametrize("file_format", ["jsonl", "rli", "otlp"])
def test_signs_of_life_are_not_events_and_not_lanes_and_do_not_extend_a_run(runs, tmp_path, file_format):
    begin = time.time_ns() - 600_000_000_000
    with runs.open("r1", create=True) as store:
        for number in range(3):
            builder = BatchBuilder()
            if number < 2:
                builder.add_span(
                    span_id=number + 1, trace=(1, 1), name="update", start_ns=begin, duration_ns=10**9, lane="gpu"
                )
                builder.add_event(time_ns=begin + 5, name="weights", lane="gpu")
            else:  # without any lane
                series = builder.add_series("loss", "gauge", "", "{}")
                builder.add_sample(series, time_ns=begin, value=1.0)
            process = Process(process_id=f"p{number}", run_id="r1", host="node", pid=1, role="trainer", rank=number)
            store.commit([builder.build(process, sequence=1, sent_ns=time.time_ns())])
    last = "r1"
    for again in ("first", "second"):
        path = tmp_path / f"{again}.{SUFFIX.get(file_format, file_format)}"
        with runs.open(last) as store:
            export_run(store, file_format, path)
        _import(path, runs, tmp_path, run_id=again)
        last = again
        with runs.open(again) as store, store.reader() as cursor:
            found, counts = queries.search_events(cursor), queries.summary(cursor)
            (shown,) = cursor.execute("SELECT count(*) FROM events").fetchone()
            (signs,) = cursor.execute("SELECT count(*) FROM event_data WHERE name = 'rl_insight.last_seen'").fetchone()
            lanes = queries.lane_idle(cursor, begin, begin + 10**9)
            marks = queries.marks(cursor)
        assert ([one.name for one in found], shown, counts.events) == (["weights", "weights"], 2, 2)
        assert [mark.name for mark in marks if mark.kind == "event"] == ["weights"]
        assert (counts.lanes, len(lanes)) == (2, 2)
        assert (counts.start_ns, counts.end_ns) == (begin, begin + 10**9)
        assert signs == 3  # for diagnosis, and the next export


def test_batches_sent_to_a_server_say_that_they_come_from_a_file(export, tmp_path):
    bodies = []

    def post(body):
        bodies.append(body)
        return ServerAnswer(200, accepted=1)

    Importer(ServerDestination(post), data_dir=tmp_path / "data", run_id="again").add(export("jsonl"))
    with RunStore(tmp_path / "server.duckdb", min_free_bytes=0, create=True) as store:
        store.commit([decode(payload) for body in bodies for payload in read_frames(BytesIO(body))])
        with store.reader() as cursor:
            assert {one.state for one in queries.processes(cursor, time.time_ns())} == {"ended"}
            ((heard,),) = cursor.execute("SELECT count(*) FROM processes WHERE delay_ns IS NOT NULL").fetchall()
    assert heard == 0


def test_a_file_that_is_followed_belongs_to_a_live_process(export, runs, tmp_path):
    stop = Event()
    stop.set()
    Importer(StoreDestination(runs), data_dir=tmp_path / "data", run_id="again").follow(export("jsonl"), stop)
    (info,) = runs.list_runs()
    assert info.state == "running"


@pytest.mark.parametrize("file_format", ["jsonl", "rli", "otlp"])
def test_the_export_of_a_run_is_not_stored_again_in_that_run(export, runs, tmp_path, file_format):
    path = export(file_format)
    with runs.open("r1", create=True) as store:
        store.commit([_recorded()])
        with store.reader() as cursor:
            before = queries.summary(cursor)
    summary = _import(path, runs, tmp_path)
    assert (summary.runs, summary.new_batches) == (["r1"], 0)
    assert summary.duplicate_batches > 0
    with runs.open("r1") as store, store.reader() as cursor:
        assert queries.summary(cursor) == before
    assert _import(path, runs, tmp_path, run_id="copy").new_batches > 0


def test_a_writer_acknowledges_the_export_of_its_own_run_without_storing_it(export, runs, tmp_path):
    """Like a server: each batch is acknowledged, new or not."""
    bodies = []

    def post(body):
        bodies.append(body)
        return ServerAnswer(200, duplicates=1)

    Importer(ServerDestination(post), data_dir=tmp_path / "data").add(export("jsonl"))
    copies = [decode(payload) for body in bodies for payload in read_frames(BytesIO(body))]
    writer = StoreWriter(runs)
    try:
        original = writer.submit_all([(_recorded(), 100)]).result(30)
        found = writer.submit_all([(copy, 100) for copy in copies]).result(30)
    finally:
        writer.close()
    assert original == [True]
    assert found == [False] * len(copies) != []
