"""Batches that are committed together give the same rows as one by one."""

from __future__ import annotations

import pytest

from rl_insight.schema import BatchBuilder, Process
from rl_insight.store.run_store import RunStore

VIEWS = {
    "spans": "process_id, span_id",
    "open_spans": "process_id, span_id",
    "events": "process_id, time_ns, name",
    "logs": "process_id, time_ns, message",
    "samples": "process_id, name, labels, time_ns",
    "histograms": "process_id, name, time_ns",
    "sessions": "session_id",
}


def _batch(process: int, sequence: int):
    """Return a batch with rows in every table; span ids, names and strings repeat across processes."""
    builder = BatchBuilder()
    first = sequence * 100
    lane = None if process % 2 else f"lane{process}"
    # The parent is told after its child, as when it ends later.
    for number, parent in ((2, first + 1), (1, 0), (3, 0)):
        builder.add_span(
            span_id=first + number,
            trace=(process, 1),
            parent_id=parent,
            name=f"work{number}",
            start_ns=first + number,
            duration_ns=-1 if number == 3 else 20_000_000_000,
            lane=lane,
            status="open" if number == 3 else "ok",
            step=sequence if process else None,
            attributes=f'{{"p":{process}}}' if number == 1 else None,
        )
    builder.add_event(time_ns=first, name="mark", lane=lane)
    builder.add_log(time_ns=first, level=20, message=f"line of {process}", logger=None)
    for labels in ("{}", f'{{"rank":"{process}"}}'):
        series = builder.add_series("loss", "gauge", "The loss.", labels)
        builder.add_sample(series, time_ns=first, value=process + sequence / 10)
    series = builder.add_series("seconds", "histogram", "", "{}")
    buckets = {code: code + process + 1 for code in range(process)}
    builder.add_histogram(series, time_ns=first, count=3, total=1.5, minimum=0.1, maximum=1.0, buckets=buckets)
    builder.add_session(session_id=f"s{process}", task_id="t", status="pending", time_ns=first, record=None)
    who = Process(process_id=f"p{process}", run_id="r", host="h", pid=process, rank=process)
    return builder.build(who, sequence=sequence, sent_ns=10**9)


def _content(path, commits):
    with RunStore(path, create=True) as store:
        new = [store.commit(batches, received_ns=[2 * 10**9] * len(batches)) for batches in commits]
        with store.reader() as cursor:
            rows = {
                name: cursor.execute(f"SELECT * FROM {name} ORDER BY {order}").fetchall()
                for name, order in VIEWS.items()
            }
    return [one for some in new for one in some], rows


@pytest.fixture
def batches():
    return [_batch(process, sequence) for sequence in (1, 2) for process in range(4)]


def test_batches_committed_together_give_the_rows_that_they_give_one_by_one(tmp_path, batches):
    together = _content(tmp_path / "together.duckdb", [batches])
    one_by_one = _content(tmp_path / "single.duckdb", [[batch] for batch in batches])
    assert together == one_by_one
    assert [len(rows) for rows in together[1].values()] == [16, 8, 8, 8, 16, 8, 4]


def test_a_span_nests_under_its_parent_of_the_same_process_only(tmp_path, batches):
    _, rows = _content(tmp_path / "run.duckdb", [batches])
    assert {row[-1] for row in rows["spans"]} == {0, 1}
    orphan = BatchBuilder()
    orphan.add_span(span_id=7, trace=(9, 9), parent_id=101, name="a", start_ns=1, duration_ns=1, lane="own")
    process = Process(process_id="p9", run_id="r", host="h", pid=9)
    alone = orphan.build(process, sequence=1, sent_ns=10**9)
    # Its parent's id is that of a span of other processes: it counts as a parent that was not seen.
    _, with_others = _content(tmp_path / "others.duckdb", [[*batches, alone]])
    _, by_itself = _content(tmp_path / "alone.duckdb", [[alone]])
    found = [row for row in with_others["spans"] if row[0] == f"{7:016x}"]
    assert [row[-1] for row in found] == [row[-1] for row in by_itself["spans"]] == [1]


def test_a_repeated_batch_among_gathered_ones_is_stored_once(tmp_path, batches):
    new, rows = _content(tmp_path / "run.duckdb", [[batches[0], batches[1], batches[0]], batches[:2]])
    assert new == [True, True, False, False, False]
    assert len(rows["spans"]) == 4


def test_large_batches_and_small_ones_share_a_commit(tmp_path, batches):
    builder = BatchBuilder()
    for number in range(3_000):
        builder.add_span(span_id=number + 1, trace=(1, 2), name=f"n{number % 7}", start_ns=number, duration_ns=1)
    large = builder.build(Process(process_id="big", run_id="r", host="h", pid=1), sequence=1, sent_ns=10**9)
    _, rows = _content(tmp_path / "run.duckdb", [[batches[0], large, batches[1]]])
    assert len(rows["spans"]) == 3_004
