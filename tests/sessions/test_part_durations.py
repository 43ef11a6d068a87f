"""How long all finished sessions took, by part, against values computed by hand."""

import pytest

from rl_insight.sessions.model import Snapshot
from rl_insight.sessions.records import PhaseRecord, SessionEntry
from rl_insight.store import RunStore, queries
from rl_insight.store.sessions import write_entries

SUBMIT = 100.0


@pytest.fixture
def durations(tmp_path):
    """Return the durations of sessions given as their snapshots and the seconds of their phases."""

    def run(given, **conditions):
        entries = {}
        for number, (snapshot, phases) in enumerate(given):
            entry = entries[f"s{number}"] = SessionEntry(f"s{number}", snapshot, 0)
            entry.phases = {
                f"{place:016x}": PhaseRecord(name=name, start_ts=SUBMIT, end_ts=SUBMIT + seconds)
                for place, (name, seconds) in enumerate(phases.items())
            }
        with RunStore(tmp_path / f"{len(list(tmp_path.iterdir()))}.duckdb", create=True) as store:
            with store.writing() as connection:
                write_entries(connection, entries, {}, [])
            with store.reader() as cursor:
                return queries.session_durations(cursor, queries.SessionConditions(**conditions))

    return run


def took(seconds, status="accepted", queued=None, **phases):
    enqueue_ts = None if queued is None else SUBMIT + queued
    snapshot = Snapshot(status=status, submit_ts=SUBMIT, enqueue_ts=enqueue_ts, finalized_ts=SUBMIT + seconds)
    return snapshot, phases


PENDING = (Snapshot(status="pending", submit_ts=SUBMIT, enqueue_ts=SUBMIT + 9), {"generate": 9.0, "judge": 9.0})


def test_each_part_covers_all_finished_sessions(durations):
    given = [
        took(1.0, queued=0.5, generate=0.5),
        took(2.0, queued=0.25, generate=1.0, judge=0.5),
        took(5.0, generate=4.0, judge=0.5, total=3.0),
        PENDING,
    ]
    found = durations(given)
    assert [(one.name, one.is_phase, one.count, one.p50_s, one.max_s) for one in found] == [
        ("total", False, 3, 2.0, 5.0),
        ("queue wait", False, 2, 0.375, 0.5),
        ("generate", True, 3, 1.0, 4.0),
        ("total", True, 1, 3.0, 3.0),
        ("judge", True, 2, 0.5, 0.5),
    ]
    total = found[0]
    assert (total.p95_s, total.p99_s) == (pytest.approx(2 + 0.9 * 3), pytest.approx(2 + 0.98 * 3))


def test_more_sessions_than_a_page_shows_all_count(durations):
    found = durations([took(seconds) for seconds in range(1, 12_001)])
    assert [(one.count, one.p50_s, one.max_s) for one in found] == [(12_000, 6000.5, 12_000.0)]
    assert found[0].p95_s == pytest.approx(1 + 0.95 * 11_999)


def test_durations_keep_to_the_conditions(durations):
    given = [took(1.0), took(7.0, status="failed"), took(9.0, status="failed"), PENDING]
    (failed,) = durations(given, status=["failed"])
    assert (failed.count, failed.p50_s, failed.max_s) == (2, 8.0, 9.0)
    assert durations(given, status=["pending"]) == []


def test_the_eight_longest_phases_are_listed(durations):
    phases = {f"phase_{number}": float(number) for number in range(1, 12)}
    found = durations([took(20.0, **phases)])
    assert [one.name for one in found if one.is_phase] == [f"phase_{number}" for number in range(11, 3, -1)]


def test_bins_cover_the_durations_evenly(durations):
    (total,) = durations([took(seconds) for seconds in (1.0, 1.0, 2.0, 17.0, 33.0)])
    assert [(one.from_s, one.to_s) for one in total.bins] == [(float(at), at + 1.0) for at in range(1, 33)]
    assert {one.from_s: one.count for one in total.bins if one.count} == {1.0: 2, 2.0: 1, 17.0: 1, 32.0: 1}


def test_bins_are_logarithmic_over_more_than_two_decades(durations):
    total, queued = durations([took(seconds, queued=seconds - 0.001) for seconds in (0.001, 0.5, 1000.0)])
    assert [queued.bins[0].count, queued.bins[-1].count] == [2, 1]  # starts at 0, where no logarithm does
    assert len({round(one.to_s / one.from_s, 9) for one in total.bins}) == 1
    assert (total.bins[0].from_s, total.bins[-1].to_s) == (pytest.approx(0.001), pytest.approx(1000.0))
    # 0.5 s is 2.699 of 6 decades above 1 ms: in bin 14 of 32.
    assert [index for index, one in enumerate(total.bins) if one.count] == [0, 14, 31]


def test_equal_durations_are_one_bin(durations):
    (total,) = durations([took(2.0), took(2.0)])
    assert [(one.from_s, one.to_s, one.count) for one in total.bins] == [(2.0, 2.0, 2)]
