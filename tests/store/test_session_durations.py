"""The durations of a stored session, computed in SQL, are those of its record, computed in Python."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rl_insight.sessions.model import DERIVED, KNOWN_PHASES, Snapshot
from rl_insight.sessions.records import PhaseRecord, SessionEntry, build_record
from rl_insight.store import RunStore, queries, session_rows
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


def stored(path, given_sessions, few=session_rows.FEW_SESSIONS):
    """Write sessions and return them as they are read back, by their number; with `few` 0 SQL computes durations."""
    entries = {}
    for number, (snapshot, some) in enumerate(given_sessions):
        entry = entries[str(number)] = SessionEntry(str(number), snapshot, 0)
        entry.phases = {f"{place:016x}": phase for place, phase in enumerate(some)}
    with RunStore(path, create=True) as store:
        with store.writing() as connection, pytest.MonkeyPatch.context() as patched:
            patched.setattr(session_rows, "FEW_SESSIONS", few)
            write_entries(connection, entries, {}, [])
        with store.reader() as cursor:
            found, _ = queries.sessions(cursor, limit=len(entries) + 1)
    return {int(session.session_id): session for session in found}


def phase(name, start_s, end_s):
    return PhaseRecord(name=name, start_ts=BEGIN_US / 1e6 + start_s, end_ts=BEGIN_US / 1e6 + end_s)


@given(st.lists(sessions, max_size=20))
@example([(Snapshot(submit_ts=-1e308, enqueue_ts=1e308, finalized_ts=1e300), [])])
@example([(Snapshot(), [phase("judge", 0.0000005 * n, 0.000002 * n) for n in range(500)])])
def test_the_store_and_a_record_agree_on_every_duration(tmp_path_factory, given_sessions):
    found = stored(tmp_path_factory.mktemp("durations") / "run.duckdb", given_sessions, few=0)
    assert stored(tmp_path_factory.mktemp("computed") / "run.duckdb", given_sessions) == found
    assert len(found) == len(given_sessions)
    for number, (snapshot, some) in enumerate(given_sessions):
        record = build_record(snapshot, some)
        names = {one.name for one in some if one.end_ts is not None}
        expected = {name: record.get(name) for name in DERIVED if name not in {"phase_seconds", "turns"}}
        expected["turns"] = sum(one.name == "generate" and one.end_ts is not None for one in some) or None
        expected["phase_seconds"] = {name: record[f"{name}_s"] for name in names}
        assert {name: getattr(found[number], name) for name in DERIVED} == expected


def test_overlaps_count_once_and_what_is_open_does_not_count(tmp_path):
    """The other test compares two ways to the same number; this one checks its value."""
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
