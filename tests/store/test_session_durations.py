"""The durations of a session: its record and its row say what counting microseconds says."""

from itertools import pairwise
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_insight.sessions.model import DERIVED, KNOWN_PHASES, Snapshot
from rl_insight.sessions.records import PhaseRecord, SessionEntry, build_record
from rl_insight.store import RunStore, queries
from rl_insight.store.sessions import write_entries

BEGIN_US = 1_767_225_600_000_000
LIFECYCLE = ("queue_wait", "runner_wait", "post_wait", "total")

moments = st.integers(0, 9_000_000).map(lambda micros: (BEGIN_US + micros) / 1_000_000)
snapshots = st.builds(
    Snapshot,
    submit_ts=st.none() | moments,
    enqueue_ts=st.none() | moments,
    wait_return_ts=st.none() | moments,
    finalized_ts=st.none() | moments,
)
phases = st.builds(
    PhaseRecord,
    name=st.sampled_from([*KNOWN_PHASES, "judge", 'odd "name\\', "", "é"]),
    start_ts=moments,
    end_ts=st.none() | moments,
)
sessions = st.tuples(snapshots, st.lists(phases, max_size=12))


def stored(path, given_sessions):
    """Write sessions and return them as they are read back, by their number."""
    entries = {}
    for number, (snapshot, some) in enumerate(given_sessions):
        entry = entries[str(number)] = SessionEntry(str(number), snapshot, 0)
        entry.phases = {f"{place:016x}": phase for place, phase in enumerate(some)}
    with RunStore(path, create=True) as store:
        with store.writing() as connection:
            write_entries(connection, entries, {}, [])
        with store.reader() as cursor:
            found, _ = queries.sessions(cursor, limit=len(entries) + 1)
    return {int(session.session_id): session for session in found}


def micros(time_ts):
    return round(time_ts * 1_000_000)


def between(start, end):
    return None if start is None or end is None else max(0, micros(end) - micros(start)) / 1_000_000


def covered_seconds(some):
    """Return the time in which at least one of some phases runs, from all its moments; None if none has ended."""
    intervals = [(micros(one.start_ts), micros(one.end_ts)) for one in some if one.end_ts is not None]
    moments = sorted({moment for interval in intervals for moment in interval})
    lengths = (
        after - before
        for before, after in pairwise(moments)
        if any(start <= before and after <= end for start, end in intervals)
    )
    return sum(lengths) / 1_000_000 if intervals else None


def expected(snapshot, some):
    named = {name: [one for one in some if one.name == name] for name in {one.name for one in some}}
    executions = named.get("execution", [])
    ends = [snapshot.wait_return_ts, snapshot.finalized_ts]
    seconds = {name: covered_seconds(same) for name, same in named.items()}
    return {
        "queue_wait_s": between(snapshot.submit_ts, snapshot.enqueue_ts),
        "runner_wait_s": between(snapshot.enqueue_ts, min((one.start_ts for one in executions), default=None)),
        "post_wait_s": between(
            min((one.end_ts for one in executions if one.end_ts is not None), default=None), snapshot.wait_return_ts
        ),
        "total_s": between(snapshot.submit_ts, max((end for end in ends if end is not None), default=None)),
        **{f"{name}_s": seconds.get(name) for name in KNOWN_PHASES},
        "phase_seconds": {name: value for name, value in seconds.items() if value is not None},
        "turns": sum(one.name == "generate" and one.end_ts is not None for one in some) or None,
    }


def phase(name, start_s, end_s):
    return PhaseRecord(name=name, start_ts=BEGIN_US / 1e6 + start_s, end_ts=BEGIN_US / 1e6 + end_s)


@given(st.lists(sessions, max_size=20))
@example([(Snapshot(), [phase("judge", 0.000005 * n, 0.000020 * n) for n in range(500)])])
@example([(Snapshot(), [phase("judge", 0.000003 * n, 0.000003 * n + 0.000001) for n in range(3_000)])])
def test_a_row_and_a_record_have_the_durations_that_counting_microseconds_gives(tmp_path_factory, given_sessions):
    found = stored(tmp_path_factory.mktemp("durations") / "run.duckdb", given_sessions)
    assert len(found) == len(given_sessions)
    for number, (snapshot, some) in enumerate(given_sessions):
        truth = expected(snapshot, some)
        assert {name: getattr(found[number], name) for name in DERIVED} == truth
        record = build_record(snapshot, some)
        of_phases = {f"{name}_s": seconds for name, seconds in truth.pop("phase_seconds").items()}
        del truth["turns"]
        assert {name: record.get(name) for name in of_phases | truth} == of_phases | truth


def test_times_at_the_ends_of_the_number_range_have_durations(tmp_path):
    session = stored(tmp_path / "run.duckdb", [(Snapshot(submit_ts=-1e308, enqueue_ts=1e308, finalized_ts=0.0), [])])
    assert (session[0].queue_wait_s, session[0].total_s) == (inf, 1e308)


@pytest.mark.parametrize(
    ("counted", "turns"), [(7, 7), ("7", 7), (2.0, 2), (1e300, 1), ("many", 1), (None, 1), ({}, 1), (float("nan"), 1)]
)
def test_turns_are_those_that_the_owner_counted_if_it_is_a_number(tmp_path, counted, turns):
    session = stored(tmp_path / "run.duckdb", [(Snapshot(counters={"turns": counted}), [phase("generate", 0, 1)])])
    assert session[0].turns == turns


def test_overlaps_count_once_and_what_is_open_does_not_count(tmp_path):
    snapshot = Snapshot(submit_ts=9.0, enqueue_ts=11.0, wait_return_ts=15.0, finalized_ts=14.0)
    some = [
        *(PhaseRecord(name="execution", start_ts=start, end_ts=end) for start, end in [(14.0, None), (12.0, 13.0)]),
        *(PhaseRecord(name="judge", start_ts=start, end_ts=end) for start, end in [(5.0, 6.0), (0.0, 2.0), (1.0, 3.0)]),
        PhaseRecord(name="reward", start_ts=5.0, end_ts=4.0),
        PhaseRecord(name="toolcall", start_ts=5.0),
    ]
    session = stored(tmp_path / "run.duckdb", [(snapshot, some)])[0]
    assert (session.queue_wait_s, session.runner_wait_s, session.post_wait_s, session.total_s) == (2.0, 1.0, 2.0, 6.0)
    assert (session.execution_s, session.generate_s, session.reward_s, session.toolcall_s) == (1.0, None, 0.0, None)
    assert session.phase_seconds == {"judge": 4.0, "reward": 0.0, "execution": 1.0}
    assert [one["start_ts"] for one in session.phases["judge"]] == [0.0, 1.0, 5.0]


@pytest.mark.parametrize("name", LIFECYCLE)
def test_a_phase_with_the_name_of_a_part_of_the_life_cycle_keeps_its_own_seconds(tmp_path, name):
    snapshot = Snapshot(submit_ts=10.0, finalized_ts=14.0)
    session = stored(tmp_path / "run.duckdb", [(snapshot, [PhaseRecord(name=name, start_ts=10.0, end_ts=11.5)])])[0]
    assert session.total_s == 4.0
    assert session.phase_seconds == {name: 1.5}
