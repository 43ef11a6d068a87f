"""Sessions in the store: merged over commits, in flight, lost."""

from __future__ import annotations

import pytest

from rl_insight.schema import BatchBuilder, Process
from rl_insight.store import RunStore, queries

SECOND = 1_000_000_000
NOW = 1_760_000_000 * SECOND
NOW_S = NOW / SECOND


class Sender:
    """One process that sends batches about sessions."""

    def __init__(self, store, process_id="p1", **fields):
        self.store = store
        known = {"run_id": "r", "host": "h", "pid": 1, "heartbeat_s": 5.0}
        self.process = Process(process_id=process_id, **known | fields)
        self.sequence = 0
        self.builder = BatchBuilder()

    def snapshot(self, session_id="s", status="pending", at=0, record="{}", task_id=None):
        self.builder.add_session(session_id=session_id, task_id=task_id, status=status, time_ns=NOW + at, record=record)
        return self

    def phase(self, name, span_id, start_s=0.0, duration_s=None, session_id="s", status=None, **fields):
        self.builder.add_span(
            span_id=span_id,
            trace=(1, 1),
            name=name,
            start_ns=NOW + int(start_s * SECOND),
            duration_ns=-1 if duration_s is None else int(duration_s * SECOND),
            segment="phase",
            session_id=session_id,
            status=status or ("open" if duration_s is None else "ok"),
            **fields,
        )
        return self

    def send(self, received_ns=NOW, **fields):
        self.sequence += 1
        batch = self.builder.build(self.process, sequence=self.sequence, sent_ns=received_ns, **fields)
        self.builder = BatchBuilder()
        self.store.commit([batch], received_ns=[received_ns])


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as opened:
        yield opened


def record(store, session_id="s"):
    with store.reader() as cursor:
        return queries.session_record(cursor, session_id)


def in_flight(store, now_ns=NOW):
    with store.reader() as cursor:
        return queries.sessions_in_flight(cursor, now_ns)


def test_what_several_commits_say_becomes_one_record(store):
    owner, worker = Sender(store, role="executor", rank=3), Sender(store, "p2")
    owner.snapshot(record=f'{{"submit_ts":{NOW_S}}}', task_id="t").send()
    worker.phase("generate", 7).send()
    worker.phase("generate", 7, duration_s=1.5, attributes='{"tokens":9}', step=4).send()
    worker.phase("think", 8, start_s=2, duration_s=0.5).send()
    done = f'{{"submit_ts":{NOW_S},"finalized_ts":{NOW_S + 3},"reward":0.5,"counters":{{"turns":2}},"step":4}}'
    owner.snapshot(status="accepted", at=1, record=done, task_id="t").send()
    assert record(store) == {
        "task_id": "t",
        "session_id": "s",
        "rank": 3,
        "role": "executor",
        "status": "accepted",
        "submit_ts": NOW_S,
        "finalized_ts": NOW_S + 3,
        "total_s": 3.0,
        "generate_s": 1.5,
        "think_s": 0.5,
        "phases": {
            "generate": [{"start_ts": NOW_S, "end_ts": NOW_S + 1.5, "outcome": "ok", "payload": {"tokens": 9}}],
            "think": [{"start_ts": NOW_S + 2, "end_ts": NOW_S + 2.5, "outcome": "ok"}],
        },
        "counters": {"turns": 2},
        "step": 4,
        "reward": 0.5,
    }
    with store.reader() as cursor:
        (session,), total = queries.sessions(cursor, queries.SessionConditions(task_id="t", status=["accepted"]))
    assert total == 1
    assert session.phase_seconds == {"generate": 1.5, "think": 0.5}
    assert session.phases["generate"][0]["span_id"] == "0000000000000007"
    assert session.process_id == "p1"


def test_an_older_snapshot_that_comes_late_changes_nothing(store):
    owner = Sender(store)
    owner.snapshot(status="rejected", at=10).send()
    owner.snapshot(status="pending", at=5).send()
    assert record(store)["status"] == "rejected"


def test_a_late_phase_joins_a_session_that_was_finished_before_the_file_was_opened_again(store, tmp_path):
    Sender(store).snapshot(status="accepted").send()
    store.close()
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0) as again:
        Sender(again, "p2").phase("reward", 1, duration_s=1).send()
        assert record(again)["status"] == "accepted"
        assert record(again)["reward_s"] == 1.0


def test_a_commit_that_fails_leaves_sessions_as_they_were(store):
    owner = Sender(store)
    owner.snapshot().send()
    owner.snapshot(status="accepted", at=1)

    def fail():
        with store.writing() as connection:
            connection.execute("DELETE FROM sessions")
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    assert record(store)["status"] == "pending"
    owner.send()
    assert record(store)["status"] == "accepted"


@pytest.mark.parametrize(
    ("text", "reward", "tokens"),
    [
        ('{"reward":"NaN","tokens":3.0}', pytest.approx(float("nan"), nan_ok=True), 3),
        ('{"reward":"high","tokens":"many"}', None, None),
        ('{"reward":[1],"tokens":1e300}', None, None),
        ('{"tokens":"9007199254740993"}', None, 2**53 + 1),
        ('{"tokens":3.5}', None, None),
        ('{"tokens":true}', None, None),
        ('{"rollout_stats":[1],"counters":"x","model_version":{"a":1},"reason":7}', None, None),
    ],
)
def test_odd_values_fit_the_columns_or_are_left_out(store, text, reward, tokens):
    Sender(store).snapshot(status="accepted", record=text).send()
    with store.reader() as cursor:
        (session,), _ = queries.sessions(cursor)
    assert session.reward == reward
    assert session.tokens == tokens
    assert session.status == "accepted"


def test_sessions_in_flight_report_their_current_phase_and_age(store):
    owner = Sender(store, role="rollout", rank=1)
    owner.snapshot("old", record=f'{{"submit_ts":{NOW_S - 60},"step":3}}', task_id="t1")
    owner.snapshot("young", record=f'{{"submit_ts":{NOW_S - 5}}}')
    owner.snapshot("done", status="accepted", record=f'{{"submit_ts":{NOW_S - 90}}}')
    owner.phase("execution", 1, -50, session_id="old").phase("toolcall", 2, -40, session_id="old")
    owner.phase("generate", 3, -45, 4.0, session_id="old")
    owner.send()
    old, young = in_flight(store)
    assert (old.session_id, old.task_id, old.rank, old.step, old.age_s) == ("old", "t1", 1, 3, 60.0)
    assert (old.phase, old.phase_age_s, old.open_phases) == ("toolcall", 40.0, 2)
    assert (young.session_id, young.age_s, young.phase, young.open_phases) == ("young", 5.0, None, 0)
    owner.phase("toolcall", 2, -40, 35, session_id="old").snapshot("young", status="cancelled", at=1).send()
    (old,) = in_flight(store)
    assert (old.phase, old.open_phases) == ("execution", 1)


class TestLost:
    def close(self, store, after_s, grace_s=30.0):
        return queries.close_lost_sessions(store, NOW + int(after_s * SECOND), grace_s)

    def test_sessions_of_a_silent_process_are_closed_after_heartbeats_and_grace(self, store):
        dead, alive = Sender(store, "dead"), Sender(store, "alive")
        dead.snapshot("a").snapshot("b", status="accepted").phase("generate", 1, session_id="a").send()
        alive.snapshot("c").send()
        alive.send(NOW + 40 * SECOND)
        assert self.close(store, 44) == []
        assert self.close(store, 46) == ["a"]
        assert self.close(store, 47) == []
        lost = record(store, "a")
        assert (lost["status"], lost["reason"], lost["finalized_ts"]) == ("lost", "its process fell silent", NOW_S)
        assert record(store, "b")["status"] == "accepted"
        assert [session.session_id for session in in_flight(store)] == ["c"]

    def test_sessions_of_a_process_that_ended_are_closed_after_the_grace_time(self, store):
        Sender(store).snapshot().send(final=True)
        assert self.close(store, 29) == []
        assert self.close(store, 31) == ["s"]
        assert record(store)["reason"] == "its process ended"

    def test_a_phase_that_comes_late_leaves_it_lost(self, store):
        Sender(store).snapshot().send(final=True)
        self.close(store, 31)
        Sender(store, "p2").phase("reward", 1, duration_s=1).send(NOW + 32 * SECOND)
        assert (record(store)["status"], record(store)["reward_s"]) == ("lost", 1.0)

    def test_the_word_of_a_process_that_comes_back_counts(self, store):
        owner = Sender(store)
        owner.snapshot().send()
        assert self.close(store, 60) == ["s"]
        owner.snapshot(status="accepted", at=2).send(NOW + 70 * SECOND)
        assert record(store)["status"] == "accepted"

    def test_silence_counts_from_when_the_server_listens(self, store):
        Sender(store).snapshot().send()
        back = NOW + 60 * SECOND
        close = queries.close_lost_sessions
        assert close(store, back + 44 * SECOND, listening_since_ns=back) == []
        assert close(store, back + 46 * SECOND, listening_since_ns=back) == ["s"]

    @pytest.mark.parametrize("restarted", [False, True])
    def test_any_later_report_of_its_process_takes_it_back(self, store, tmp_path, restarted):
        owner, other = Sender(store), Sender(store, "p2")
        owner.snapshot(record=f'{{"submit_ts":{NOW_S}}}', task_id="t").phase("generate", 1, duration_s=1).send()
        owner.phase("reward", 2, session_id="only a phase").send()
        other.snapshot("of another").send()
        before = record(store), record(store, "only a phase")
        assert sorted(self.close(store, 60)) == ["of another", "only a phase", "s"]
        if restarted:
            store.close()
            store = RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True)
            owner.store = store
        owner.send(NOW + 70 * SECOND)
        assert (record(store), record(store, "only a phase")) == before
        assert record(store, "of another")["status"] == "lost"
        owner.snapshot(status="accepted", at=71).send(NOW + 71 * SECOND)
        assert record(store)["status"] == "accepted"
        store.close()

    def test_a_session_that_its_owner_calls_lost_stays_lost(self, store):
        owner = Sender(store)
        owner.snapshot(status="lost", record='{"reason":"gone"}').send()
        owner.send(NOW + 70 * SECOND)
        assert (record(store)["status"], record(store)["reason"]) == ("lost", "gone")

    @pytest.mark.parametrize("heartbeat_s", [1e308, float("inf"), 0.0])
    def test_an_absurd_heartbeat_does_not_stop_the_others_from_being_closed(self, store, heartbeat_s):
        Sender(store, "absurd", heartbeat_s=heartbeat_s).snapshot("a").send()
        Sender(store).snapshot().send()
        assert "s" in self.close(store, 60)

    def test_an_open_phase_without_an_owner_is_lost_with_its_process(self, store):
        Sender(store).phase("generate", 1).send()
        assert [session.session_id for session in in_flight(store)] == ["s"]
        assert self.close(store, 60) == ["s"]
        assert record(store)["status"] == "lost"
