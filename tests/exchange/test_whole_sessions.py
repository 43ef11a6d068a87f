"""Sessions imported as complete rows: the same rows as if they had arrived in parts, once, whatever is stored."""

import io
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_insight.exchange.importing.destinations import ServerAnswer, ServerDestination
from rl_insight.exchange.importing.importer import Importer
from rl_insight.exchange.importing.readers.areal import ArealSessionReader
from rl_insight.exchange.importing.readers.base import FileContext
from rl_insight.schema import BatchBuilder, Process, decode, read_frames
from rl_insight.store import RunStore, queries
from rl_insight.store.session_batch import SessionBatch, plain

BEGIN_S = 1_767_225_600

# Times of whole microseconds: a double holds seconds since 1970 no finer.
moments = st.integers(0, 20_000_000).map(lambda micros: (BEGIN_S * 1_000_000 + micros) / 1_000_000)
maybe = st.none() | moments
intervals = st.fixed_dictionaries(
    {"start_ts": maybe, "end_ts": maybe},
    optional={
        "outcome": st.sampled_from(["ok", "error", "cancelled", "odd", None]),
        "payload": st.sampled_from([{}, {"tokens": 9, "é": [1, None]}, 5, None, "text"]),
    },
)
phases = st.dictionaries(
    st.sampled_from(["execution", "generate", "reward", "toolcall", "judge", "total", "queue_wait", ""]),
    st.none() | st.lists(intervals, max_size=4),
    max_size=5,
)
lines = st.fixed_dictionaries(
    {"session_id": st.integers(0, 30) | st.sampled_from(["a", "b", "", "é"])},
    optional={
        "task_id": st.sampled_from([7, "gsm8k", None, {"a": 1}, 1.5, True]),
        "status": st.sampled_from(["accepted", "failed", "cancelled", "pending", "rejected", "strange"]),
        "reason": st.sampled_from(["timeout", 5, None, ["x"]]),
        "submit_ts": maybe,
        "enqueue_ts": maybe,
        "wait_return_ts": maybe,
        "finalized_ts": maybe,
        "rollout_stats": st.sampled_from([{"accepted": 8, "running": 0.5}, {}, None, [1], 3]),
        "counters": st.sampled_from([{"turns": 2}, {}, None, "x"]),
        "phases": st.none() | phases,
        "step": st.none() | st.integers(-3, 9),
        "model_version": st.sampled_from(["v1", 3, None]),
        "reward": st.sampled_from([1, -0.5, "NaN", "no number", None, [1]]),
        "tokens": st.sampled_from([512, 7.9, "12", 2**70, None, {}]),
    },
)


def batches_of(records, **options):
    context = FileContext(stem="sessions-r3", identity="abc", run_id="r", **options)
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    found = list(ArealSessionReader(context).convert(data))
    assert (context.counts.records, context.counts.bad) == (len(records), 0)
    return found


def sessions_in(store):
    with store.reader() as cursor:
        found, _ = queries.sessions(cursor, order="session_id", descending=False, limit=1000)
        # As text: a reward that is no number equals itself there.
        return [str(session) for session in found]


@given(st.lists(lines, max_size=16, unique_by=lambda line: str(line["session_id"])))
@example([{"session_id": 1, "phases": {"execution": [{"start_ts": BEGIN_S + 1.0, "end_ts": BEGIN_S + 0.5}]}}])
def test_a_whole_session_has_the_row_that_its_parts_would_give(tmp_path_factory, records):
    directory = tmp_path_factory.mktemp("whole")
    batches = batches_of(records)
    with (
        RunStore(directory / "whole.duckdb", create=True) as whole,
        RunStore(directory / "parts.duckdb", create=True) as parts,
    ):
        whole.commit(batches)
        parts.commit([plain(batch) for batch in batches])
        assert sessions_in(whole) == sessions_in(parts)


def test_what_was_given_is_kept_as_the_table_can_hold_it(tmp_path):
    """The other tests compare two ways to the same row; this one checks its content."""
    records = [
        {"session_id": 1, "task_id": {"a": 1}, "reason": ["x"], "reward": "NaN", "tokens": "12", "model_version": 3},
        {"session_id": 2, "task_id": 2**70, "reward": -0.5, "tokens": 2**70, "step": 2**70, "counters": [1]},
        {"session_id": "é", "task_id": True, "status": "", "rollout_stats": {"é": [1, None]}, "counters": {"turns": 2}},
        {"session_id": "", "task_id": 7, "reason": 5, "reward": "no number", "tokens": 7.9, "step": -3},
    ]
    with RunStore(tmp_path / "run.duckdb", create=True) as store:
        store.commit(batches_of(records))
        with store.reader() as cursor:
            found, _ = queries.sessions(cursor, order="task_id", descending=True)
    fields = ("session_id", "task_id", "reason", "tokens", "step", "model_version", "rollout_stats", "counters")
    assert [tuple(getattr(session, name) for name in fields) for session in found] == [
        ("sessions-r3-abc/1", "{'a': 1}", "['x']", 12, None, "3", {}, {}),
        ("é", "True", None, None, None, None, {"é": [1, None]}, {"turns": 2}),
        ("", "7", "5", None, -3, None, {}, {}),
        ("sessions-r3-abc/2", str(2**70), None, None, None, None, {}, {}),
    ]
    assert [str(session.reward) for session in found] == ["nan", "None", "None", "-0.5"]
    assert [session.status for session in found] == ["pending"] * 4


def test_values_that_cannot_be_read_cost_their_line_or_themselves(tmp_path):
    lines = [
        b'{"session_id":0,"rollout_stats":{"a":"\xff"}}',
        b'{"session_id":1,"phases":{"generate":[{"start_ts":1767225600,"payload":{"a":"\xfe"}}]}}',
        b'{"session_id":2,"rollout_stats":{"a":1e999},"counters":{"b":1e999}}',
        '{"session_id":3,"rollout_stats":{"a":"é"}}'.encode(),
    ]
    context = FileContext(stem="sessions-r3", identity="abc", run_id="r")
    batches = list(ArealSessionReader(context).convert(b"\n".join(lines) + b"\n"))
    assert (context.counts.records, context.counts.bad) == (2, 2)
    assert "can't decode byte 0xff" in context.counts.problems[0]
    with RunStore(tmp_path / "run.duckdb", create=True) as store:
        store.commit(batches)
        with store.reader() as cursor:
            found, _ = queries.sessions(cursor, order="session_id", descending=False)
    assert [session.rollout_stats for session in found] == [{"unreadable": '{"a":1e999}'}, {"a": "é"}]
    assert found[0].counters == {"unreadable": '{"b":1e999}'}


def test_times_are_aligned_like_those_of_parts(tmp_path, samples):
    batches = batches_of([samples.session(0), samples.session(1)], is_followed=True)
    received = [batches[0].sent_ns - 3_600_000_000_123]  # a clock that is an hour ahead
    with (
        RunStore(tmp_path / "whole.duckdb", create=True) as whole,
        RunStore(tmp_path / "parts.duckdb", create=True) as parts,
    ):
        whole.commit(batches, received_ns=received)
        parts.commit([plain(batch) for batch in batches], received_ns=received)
        assert sessions_in(whole) == sessions_in(parts)
        with whole.reader() as cursor:
            assert queries.session_record(cursor, f"{batches[0].process.process_id}/0")["submit_ts"] == pytest.approx(
                samples.begin_s - 3600.0, abs=1e-3
            )


def test_a_session_that_is_twice_in_a_file_is_stored_once_with_the_later_report(tmp_path, samples, import_path, runs):
    early = samples.session(0) | {"status": "pending", "wait_return_ts": samples.begin_s + 1, "phases": {}}
    records = [early, samples.session(1), samples.session(0)]
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(samples.lines(records))
    import_path(file, run_id="r")
    with runs.open("r") as store, store.reader() as cursor:
        found, total = queries.sessions(cursor, order="session_id", descending=False)
    assert total == 2
    assert [(one.status, one.execution_s) for one in found] == [("accepted", 7.5)] * 2


def test_a_session_joins_what_a_live_process_reported_about_it(tmp_path, samples, import_path, runs):
    live = BatchBuilder()
    live.add_span(
        span_id=5, trace=(1, 1), name="judge", start_ns=samples.begin_ns, duration_ns=2_000_000_000,
        segment="phase", session_id="s",
    )  # fmt: skip
    with runs.open("r", create=True) as store:
        store.commit([live.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=1, sent_ns=1)])
    file = tmp_path / "sessions-r0.jsonl"
    file.write_bytes(samples.lines([samples.session(0) | {"session_id": "s"}, samples.session(1)]))
    import_path(file, run_id="r")
    with runs.open("r") as store, store.reader() as cursor:
        record = queries.session_record(cursor, "s")
        assert queries.sessions(cursor)[1] == 2
    assert (record["status"], record["judge_s"], record["execution_s"]) == ("accepted", 2.0, 7.5)


def test_both_parts_and_whole_sessions_fit_in_one_commit(tmp_path, samples):
    batches = batches_of([samples.session(0) | {"session_id": "s"}, samples.session(1)])
    late = BatchBuilder()
    late.add_span(
        span_id=5, trace=(1, 1), name="judge", start_ns=samples.begin_ns, duration_ns=2_000_000_000,
        segment="phase", session_id="s",
    )  # fmt: skip
    other = late.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=1, sent_ns=1)
    with RunStore(tmp_path / "run.duckdb", create=True) as store:
        store.commit([*batches, other])
        with store.reader() as cursor:
            assert queries.sessions(cursor)[1] == 2
            assert queries.session_record(cursor, "s")["judge_s"] == 2.0


def test_a_server_is_sent_snapshots_that_give_the_same_rows(tmp_path, samples, import_path, runs, data_dir):
    file = tmp_path / "sessions-r0.jsonl"
    records = [samples.session(number, reward=0.5, counters={"turns": number}) for number in range(5)]
    file.write_bytes(samples.lines(records))
    bodies = []

    def post(body):
        bodies.append(body)
        return ServerAnswer(status=200, accepted=1)

    sender = Importer(ServerDestination(post), data_dir=data_dir, run_id="r")
    sender.add(file)
    sent = [decode(payload) for body in bodies for payload in read_frames(io.BytesIO(body))]
    import_path(file, run_id="r")
    with RunStore(tmp_path / "server.duckdb", create=True) as server, runs.open("r") as local:
        server.commit(sent)
        assert sessions_in(server) == sessions_in(local)
        assert not any(isinstance(batch, SessionBatch) for batch in sent)
