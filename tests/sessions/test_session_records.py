from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_insight.schema import BatchBuilder, Process
from rl_insight.sessions.model import STATUSES, Snapshot
from rl_insight.sessions.records import (
    PhaseRecord,
    SessionBook,
    SessionEntry,
    SessionRecord,
    Update,
    build_record,
    record_line,
)

PROCESS = Process(process_id="p", run_id="r", host="h", pid=1, rank=2, role="rollout")
SECONDS = st.integers(0, 10_000).map(lambda n: 1_700_000_000 + n / 64)
NAMES = st.sampled_from(["execution", "generate", "reward", "toolcall", "total", "queue_wait", "think", "", "ü"])


@st.composite
def phases(draw):
    start = draw(SECONDS)
    is_open = draw(st.booleans())
    return PhaseRecord(
        name=draw(NAMES),
        start_ts=start,
        end_ts=None if is_open else draw(SECONDS),
        outcome="open" if is_open else draw(st.sampled_from(["ok", "error", "cancelled"])),
        span_id=f"{draw(st.integers(0, 2**64 - 1)):016x}",
    )


SNAPSHOTS = st.builds(
    Snapshot,
    session_id=st.text() | st.integers(0, 99),
    status=st.none() | st.sampled_from(STATUSES),
    submit_ts=st.none() | SECONDS,
    enqueue_ts=st.none() | SECONDS,
    wait_return_ts=st.none() | SECONDS,
    finalized_ts=st.none() | SECONDS,
    reward=st.none() | st.floats(),
)


@given(SNAPSHOTS, st.lists(phases(), max_size=8))
def test_a_record_holds_what_is_known_and_nothing_else(snapshot, some):
    record = build_record(snapshot, some)
    assert None not in record.values()
    assert record["status"] in STATUSES
    assert all(value >= 0 for name, value in record.items() if name.endswith("_s"))
    assert sum(map(len, record.get("phases", {}).values())) == len(some)
    ended = {f"{phase.name}_s" for phase in some if phase.end_ts is not None}
    lifecycle = {"queue_wait_s", "runner_wait_s", "execution_s", "post_wait_s", "total_s"}
    assert {name for name in record if name.endswith("_s")} - lifecycle == ended - lifecycle
    marks = {"submit_ts", "enqueue_ts", "wait_return_ts", "finalized_ts"}
    assert {name for name in record if name.endswith("_ts")} == {
        name for name in marks if getattr(snapshot, name) is not None
    }


@given(SNAPSHOTS, st.lists(phases(), max_size=8), st.randoms())
def test_the_order_in_which_phases_are_reported_does_not_matter(snapshot, some, random):
    shuffled = list(some)
    random.shuffle(shuffled)
    by_span = {phase.span_id: phase for phase in some}
    unique = [phase for phase in shuffled if by_span[phase.span_id] is phase]
    assert (
        build_record(snapshot, unique) == build_record(snapshot, list(by_span.values()))
        or snapshot.reward != snapshot.reward
    )


@given(st.lists(phases(), max_size=6, unique_by=lambda phase: phase.span_id), st.randoms())
def test_snapshots_and_phases_may_come_in_any_order_and_more_than_once(some, random):
    snapshots = [Snapshot(session_id="s", status="pending"), Snapshot(session_id="s", status="rejected")]
    updates = [Update("s", number, snapshot=snapshot) for number, snapshot in enumerate(snapshots)]
    updates += [Update("s", 0, phase=phase) for phase in some]
    updates += [
        Update("s", 0, phase=PhaseRecord(name=p.name, start_ts=p.start_ts, outcome="open", span_id=p.span_id))
        for p in some
    ]
    random.shuffle(updates)
    entry = SessionEntry("s")
    for update in updates:
        entry.add(update)
    assert entry.record() == build_record(snapshots[1], some)


@given(SNAPSHOTS, st.lists(phases(), max_size=4))
def test_every_record_is_a_line_of_plain_json(snapshot, some):
    record = build_record(snapshot, some)
    line = record_line(record)
    assert b"\n" not in line
    read = json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert read.keys() == record.keys()


@pytest.mark.parametrize(
    ("outcomes", "status"),
    [
        ([], "pending"),
        (["open"], "pending"),
        (["ok", "open"], "pending"),
        (["error", "ok"], "accepted"),
        (["ok", "error"], "failed"),
        (["ok", "cancelled"], "cancelled"),
    ],
)
def test_without_an_owner_the_status_follows_from_the_phases(outcomes, status):
    some = [
        PhaseRecord(
            name="p", start_ts=float(n), end_ts=None if outcome == "open" else n + 1.0, outcome=outcome, span_id=str(n)
        )
        for n, outcome in enumerate(outcomes)
    ]
    assert build_record(Snapshot(session_id="s"), some)["status"] == status


def test_the_older_name_of_the_reward_is_readable():
    record = SessionRecord(reward_s=0.5)
    assert (record["reward_calc_s"], record.get("reward_calc_s")) == (0.5, 0.5)
    assert SessionRecord().get("reward_calc_s", 7) == 7
    with pytest.raises(KeyError):
        SessionRecord()["reward_calc_s"]


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{", '{"submit_ts":"soon"}', '{"step":1.5}', '{"session_id":[]}', "[" * 100_000],
)
def test_a_snapshot_that_cannot_be_read_leaves_id_status_and_process(text):
    builder = BatchBuilder()
    builder.add_session(session_id="s", task_id="t", status="failed", time_ns=5, record=text)
    book = SessionBook()
    assert book.add(builder.build(PROCESS, sequence=1, sent_ns=1)) == ["s"]
    assert book["s"].record() == {"task_id": "t", "session_id": "s", "rank": 2, "role": "rollout", "status": "failed"}


@given(st.integers(-(10**12), 10**12))
def test_times_are_aligned_by_the_clock_offset_of_their_process(offset_ns):
    from rl_insight.sessions.records import session_updates

    builder = BatchBuilder()
    builder.add_span(
        span_id=1,
        trace=(1, 1),
        name="generate",
        start_ns=10**18,
        duration_ns=5 * 10**8,
        segment="phase",
        session_id="s",
    )
    builder.add_session(session_id="s", status="pending", time_ns=10**18, record='{"submit_ts":1000000000.0}')
    batch = builder.build(PROCESS, sequence=1, sent_ns=1)
    phase, snapshot = session_updates(batch, offset_ns)
    assert phase.phase.start_ts == pytest.approx(10**9 + offset_ns / 1e9, abs=2e-6)
    assert snapshot.snapshot.submit_ts == pytest.approx(10**9 + offset_ns / 1e9, abs=2e-6)


def test_spans_that_are_not_phases_or_belong_to_no_session_are_left_out():
    builder = BatchBuilder()
    for segment, session_id in (("duration", "s"), ("phase", None), ("session", "s")):
        builder.add_span(
            span_id=1, trace=(1, 1), name="x", start_ns=1, duration_ns=1, segment=segment, session_id=session_id
        )
    assert SessionBook().add(builder.build(PROCESS, sequence=1, sent_ns=1)) == []
