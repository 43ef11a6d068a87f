"""The group of a session: the samples that GRPO compares with each other."""

from __future__ import annotations

import json

import rl_insight as insight
from rl_insight.exchange.exporting._read_back import read_back
from rl_insight.exchange.importing.readers.areal import ArealSessionReader
from rl_insight.exchange.importing.readers.base import FileContext
from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunStore, queries


def groups(store):
    with store.reader() as cursor:
        found, _ = queries.sessions(cursor, order="session_id", descending=False)
    return {session.session_id: session.group_id for session in found}


def commit_snapshots(store, **records):
    builder = BatchBuilder()
    for session_id, record in records.items():
        builder.add_session(session_id=session_id, task_id="t", status="pending", time_ns=1, record=json.dumps(record))
    process = Process(process_id="p", run_id="r", host="h", pid=1)
    store.commit([builder.build(process, sequence=1, sent_ns=0)])


def test_the_record_names_the_group_that_was_given(insight_capture):
    with insight.session("t-1", session_id="a", group_id="g-1") as session:
        session.finalize("accepted")
    with insight.session("t-1", session_id="b"):
        pass
    given, other = insight_capture.sessions
    assert given["group_id"] == "g-1"
    assert "group_id" not in other


def test_the_store_keeps_the_group_and_takes_the_task_for_it_by_default(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        commit_snapshots(store, a={"group_id": 7}, b={}, c={"task_id": 12})
        assert groups(store) == {"a": "7", "b": "t", "c": "12"}
        with store.reader() as cursor:
            assert queries.session_record(cursor, "a")["group_id"] == "7"
            assert "group_id" not in queries.session_record(cursor, "b")


def test_an_export_is_imported_with_its_groups(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        commit_snapshots(store, a={"group_id": "g"}, b={})
        with store.reader() as cursor:
            batches = list(read_back(cursor))
    with RunStore(tmp_path / "copy.duckdb", min_free_bytes=0, create=True) as copy:
        copy.commit(batches)
        assert groups(copy) == {"a": "g", "b": "t"}


def test_imported_session_records_keep_their_groups(tmp_path):
    lines = [{"session_id": "a", "task_id": 3, "group_id": 5}, {"session_id": "b", "task_id": 4}]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    reader = ArealSessionReader(FileContext(stem="s", identity="i", run_id="r"))
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        store.commit(list(reader.convert(data)))
        assert groups(store) == {"a": "5", "b": "4"}
