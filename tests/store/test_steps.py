"""Steps and where their time went, against values computed by hand."""

from __future__ import annotations

import random
import time

import duckdb
import pytest

from rl_insight.diagnosis.names import state_kind
from rl_insight.store import RunDirectory, RunStore, queries
from rl_insight.store.errors import QueryError
from rl_insight.store.sessions import entry_of, write_entries

SECOND = 1_000_000_000
LATER_NS = 3600 * SECOND


def state(maker, name, start, duration, **fields):
    fields.setdefault("segment", "state_interval")
    maker.span(name, start=int(start * SECOND), duration=int(duration * SECOND), **fields)


def commit(store, *makers, final=True):
    store.commit([maker.build(final=final) for maker in makers])


def bounds(store, begin_ns, **options):
    """Return (step, start, end) in seconds from the beginning."""
    with store.reader() as cursor:
        found = queries.steps(cursor, **options)
    return [
        (one.step, (one.start_ns - begin_ns) / SECOND, None if one.end_ns is None else (one.end_ns - begin_ns) / SECOND)
        for one in found
    ]


def breakdown(store, first, last, role=None):
    with store.reader() as cursor:
        return queries.breakdown(cursor, first, last, role)


def seconds(step):
    return {phase.name: round(phase.wall_ns / SECOND, 6) for phase in step.phases}


def inside(step, name):
    (phase,) = (one for one in step.phases if one.name == name)
    return {one.name: round(one.wall_ns / SECOND, 6) for one in phase.inside}


def test_the_last_step_of_a_run_is_that_of_the_leading_role(tmp_path, make):
    trainer, rollout = make("t", role="trainer"), make("r", role="rollout")
    for step in range(3):
        state(trainer, "update", 10 * step, 8, step=step)
        state(rollout, "generate", 10 * step, 6, step=step + 2)  # two steps ahead
    directory = RunDirectory(tmp_path, min_free_bytes=0)
    with directory.open("run", create=True) as store:
        commit(store, trainer, rollout)
        with store.reader() as cursor:
            summary = queries.summary(cursor)
            of_last = {spot.name: spot.count for spot in queries.hotspots(cursor, queries.Scope(last_steps=1))}
    assert directory.get("run").last_step == 2
    assert (summary.first_step, summary.last_step) == (0, 2)
    assert of_last == {"update": 1, "generate": 1}
    directory.close()


def test_step_lasts_from_its_start_to_the_start_of_the_next_of_the_leading_role(store, make, begin_ns):
    trainer, rollout = make("t", role="trainer"), make("r", role="rollout")
    for step in range(3):
        state(trainer, "update", 10 * step, 8, step=step)
        # Samples of the next step are made ahead, and one of them takes far longer than a step.
        state(rollout, "generate", 10 * step - 5, 70 if step == 1 else 6, step=step)
    state(rollout, "generate", 25, 2, step=3, status="error")
    commit(store, trainer, rollout)
    assert bounds(store, begin_ns) == [(0, 0, 10), (1, 10, 20), (2, 20, 28)]
    assert bounds(store, begin_ns, limit=1) == [(2, 20, 28)]
    with store.reader() as cursor:
        assert [(one.spans, one.errors) for one in queries.steps(cursor)] == [(2, 0)] * 3


def test_last_step_is_open_until_the_run_has_ended(store, make, begin_ns):
    trainer = make("t", role="trainer")
    state(trainer, "update", 0, 4, step=7)
    state(trainer, "update", 5, -1 / SECOND, step=8)
    commit(store, trainer, final=False)
    assert bounds(store, begin_ns) == [(7, 0, 5), (8, 5, None)]
    state(trainer, "update", 5, 3, step=8, span_id=2)
    commit(store, trainer, final=False)
    assert bounds(store, begin_ns) == [(7, 0, 5), (8, 5, None)]
    # It was killed: silence is an end too.
    assert bounds(store, begin_ns, now_ns=time.time_ns() + LATER_NS) == [(7, 0, 5), (8, 5, 8)]
    commit(store, trainer)
    assert bounds(store, begin_ns) == [(7, 0, 5), (8, 5, 8)]


def test_role_that_works_on_one_step_at_a_time_leads_where_names_do_not_decide(store, make, begin_ns):
    ahead, head = make("a", role="alpha"), make("z", role="zeta")
    for step in range(4):
        state(ahead, "make", 10 * step, 25, step=step)
        state(head, "use", 10 * step + 3, 7, step=step)
    commit(store, ahead, head)
    assert bounds(store, begin_ns) == [(0, 3, 13), (1, 13, 23), (2, 23, 33), (3, 33, 40)]


def test_steps_exist_when_only_metrics_carry_them(store, make, begin_ns):
    maker = make("m", role="")
    maker.span("warm_up", start=0, duration=5)
    for step in range(3):
        maker.sample("loss", 1.0, at=(10 + 2 * step) * SECOND, step=step)
    commit(store, maker)
    assert bounds(store, begin_ns) == [(0, 10, 12), (1, 12, 14), (2, 14, None)]
    assert breakdown(store, 0, 2).steps == []


def test_metrics_alone_do_not_show_how_long_the_last_step_took(store, make, begin_ns):
    """The last metrics of a step are logged together: the milliseconds between them are not its time."""
    maker = make("m", role="trainer")
    for step in range(3):
        maker.sample("loss", 1.0, at=2 * step * SECOND, step=step)
        maker.sample("lr", 1.0, at=2 * step * SECOND + SECOND // 20, step=step)
    store.commit([maker.build(final=True)])
    assert bounds(store, begin_ns) == [(0, 0, 2), (1, 2, 4), (2, 4, None)]
    with store.reader() as cursor:
        pace = queries.step_pace(cursor, now_ns=begin_ns + 900 * SECOND)
    assert (pace.last_ns, pace.running) == (2 * SECOND, None)


def test_resumed_run_counts_the_last_time_a_step_ran_and_not_the_pause(store, make, begin_ns):
    first, second = make("t-1", role="trainer"), make("t-2", role="trainer")
    for step, start in ((4, 0), (5, 10), (6, 20)):
        state(first, "update", start, 8, step=step)
    for step, start in ((6, 1000), (7, 1010)):
        state(second, "update", start, 9, step=step)
    commit(store, first, second)
    assert bounds(store, begin_ns) == [(4, 0, 10), (5, 10, 20), (6, 1000, 1010), (7, 1010, 1019)]


def test_resumed_run_without_repetition_has_no_step_over_the_pause(store, make, begin_ns):
    first, second = make("t-1", role="trainer"), make("t-2", role="trainer")
    state(first, "update", 0, 8, step=1)
    state(second, "update", 500, 8, step=2)
    commit(store, first, second)
    assert bounds(store, begin_ns) == [(1, 0, 8), (2, 500, 508)]


def test_what_runs_inside_a_state_is_not_added_to_it(store, make):
    """One process drives the steps; its sessions run on a separate lane, inside `rollout`."""
    maker = make("p", role="rollout")
    state(maker, "rollout", 0, 0.891, step=0)
    state(maker, "nested", 0.1, 0.2, step=0, segment="state_nested", parent_id=1)
    for number, start in enumerate((0.0, 0.1, 0.2)):
        state(maker, "execution", start, 0.6, step=0, segment="phase", lane="sessions", span_id=10 + 2 * number)
        state(maker, "generate", start, 0.3, step=0, segment="phase", lane="sessions", parent_id=10 + 2 * number)
    state(maker, "update", 0.891, 0.06, step=0)
    commit(store, maker)
    found = breakdown(store, 0, 0)
    (step,) = found.steps
    assert (found.role, found.roles, step.lanes) == ("rollout", ["rollout"], 1)
    assert seconds(step) == {"rollout": 0.891, "update": 0.06}
    assert inside(step, "rollout") == {"execution": 0.8, "generate": 0.5, "nested": 0.2}
    assert inside(step, "update") == {}
    assert step.idle_ns == 0


def test_own_lane_of_a_process_represents_it_among_its_other_lanes(store, make):
    trainer = make("t", role="trainer")
    workers = [make(f"r{rank}", role="rollout", rank=rank) for rank in range(2)]
    for step in range(2):
        state(trainer, "wait_for_samples", 30 * step, 20, step=step)
        state(trainer, "update", 30 * step + 20, 10, step=step)
        for rank, worker in enumerate(workers):
            state(worker, "generate_batch", 30 * step, 16 + 2 * rank, step=step)
            for slot in range(3):
                state(worker, "generate", 30 * step, 4 + slot, step=step, segment="phase", lane=f"slot_{slot}")
    commit(store, trainer, *workers)
    found = breakdown(store, 0, 1)
    assert (found.role, found.roles) == ("trainer", ["trainer", "rollout"])
    assert [seconds(step) for step in found.steps] == [{"wait_for_samples": 20, "update": 10}] * 2
    rollout = breakdown(store, 0, 1, "rollout").steps
    assert [(seconds(step), step.lanes, step.idle_ns) for step in rollout] == [
        ({"generate_batch": 17}, 2, 13 * SECOND)
    ] * 2
    assert inside(rollout[0], "generate_batch") == {"generate": 6}
    with store.reader() as cursor:
        idle = {one.role: one for one in queries.idle_by_role(cursor, 0, 1)}
    assert idle["trainer"].share == pytest.approx(2 / 3)
    assert (idle["rollout"].lanes, idle["rollout"].share) == (2, pytest.approx(13 / 30))
    assert idle["rollout"].worst_share == pytest.approx(14 / 30)


def test_lanes_count_one_by_one_where_a_process_has_no_lane_with_states_of_its_own(store, make):
    maker = make("r", role="rollout")
    for slot, length in enumerate((4, 8)):
        state(maker, "generate", 0, length, step=0, segment="phase", lane=f"slot_{slot}")
        state(maker, "wait_weights", length, 10 - length, step=0, lane=f"slot_{slot}")
    commit(store, maker)
    (step,) = breakdown(store, 0, 0).steps
    assert (step.lanes, seconds(step)) == (2, {"generate": 6, "wait_weights": 4})
    with store.reader() as cursor:
        (idle,) = queries.idle_by_role(cursor, 0, 0)
    assert (idle.share, idle.worst_share) == (pytest.approx(0.4), pytest.approx(0.6))


WAITS = ("wait_for_samples", "barrier", "queued", "trainer/idle", "pipeline_bubble", "sleep", "waitForBatch")


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_idle_for_the_overview_and_a_wait_for_diagnosis(store, make, name):
    trainer = make("t", role="trainer")
    state(trainer, "update", 0, 6, step=0)
    state(trainer, name, 6, 4, step=0)
    commit(store, trainer)
    with store.reader() as cursor:
        (idle,) = queries.idle_by_role(cursor, 0, 0)
    assert idle.share == pytest.approx(0.4)
    assert state_kind(name) == "wait"


@pytest.mark.parametrize("name", ["await_tool_result", "generate", "unblocked_work", "WaiterPool", "idler"])
def test_work_is_not_taken_for_waiting(store, make, name):
    trainer = make("t", role="trainer")
    state(trainer, name, 0, 10, step=0)
    commit(store, trainer)
    with store.reader() as cursor:
        (idle,) = queries.idle_by_role(cursor, 0, 0)
    assert idle.share == 0.0
    assert state_kind(name) != "wait"


def test_states_that_overlap_on_a_lane_share_their_time(store, make):
    """Coroutines of one process: two `generate` and one `toolcall` at once are one lane's ten seconds."""
    maker = make("p", role="main")
    state(maker, "generate", 0, 6, step=0)
    state(maker, "generate", 2, 6, step=0)
    state(maker, "toolcall", 4, 6, step=0)
    commit(store, maker)
    (step,) = breakdown(store, 0, 0).steps
    assert seconds(step) == {"generate": 6, "toolcall": 4}
    assert step.idle_ns == 0


def test_child_that_arrived_before_its_parent_is_still_inside_it(store, make):
    maker = make("p", role="main")
    state(maker, "generate", 2, 3, step=0, segment="phase", parent_id=50)
    commit(store, maker, final=False)
    state(maker, "execution", 0, 10, step=0, segment="phase", span_id=50)
    commit(store, maker)
    (step,) = breakdown(store, 0, 0).steps
    assert (seconds(step), inside(step, "execution")) == ({"execution": 10}, {"generate": 3})


def test_states_count_in_the_step_whose_time_they_ran_in(store, make):
    trainer, rollout = make("t", role="trainer"), make("r", role="rollout")
    for step in range(2):
        state(trainer, "update", 10 * step, 10, step=step)
    state(rollout, "generate", 6, 8, step=1)
    state(rollout, "generate", 19, 50, step=1)
    commit(store, trainer, rollout)
    first, second = breakdown(store, 0, 1, "rollout").steps
    assert (seconds(first), first.idle_ns) == ({"generate": 4}, 6 * SECOND)
    assert (seconds(second), second.idle_ns) == ({"generate": 5}, 5 * SECOND)


def test_state_longer_than_many_steps_is_found(store, make):
    trainer, server = make("t", role="trainer"), make("s", role="engine")
    state(server, "serve", -100, 300, step=None)
    for step in range(3):
        state(trainer, "update", 10 * step, 9, step=step)
    commit(store, trainer, server)
    (step,) = breakdown(store, 1, 1, "engine").steps
    assert seconds(step) == {"serve": 10}


def test_phases_of_sessions_run_inside_the_states_of_their_process(store, make):
    """As in the README: a state on a named lane, and sessions inside it, whose phases have a separate lane."""
    maker = make("t", role="trainer")
    for step in range(3):
        at = 3 * step
        state(maker, "rollout", at, 2, step=step, lane="trainer_0")
        state(maker, "generate", at + 0.5, 1, step=step, lane="sessions", segment="phase")
        state(maker, "update", at + 2, 1, step=step, lane="trainer_0")
        if step == 1:  # this one outlives the state: it counts while its process has none
            state(maker, "judge", at + 2.5, 1, step=step, lane="sessions", segment="phase")
    store.commit([maker.build(final=True)])
    first, second = breakdown(store, 0, 1).steps
    assert (first.lanes, first.idle_ns) == (1, 0)
    assert [(phase.name, phase.wall_ns / SECOND) for phase in first.phases] == [("rollout", 2), ("update", 1)]
    assert [(one.name, one.wall_ns / SECOND) for one in first.phases[0].inside] == [("generate", 1)]
    assert second.idle_ns == 0


def test_time_of_phases_between_states_is_not_idle(store, make):
    maker = make("t", role="trainer")
    for step in range(3):
        at = 4 * step
        state(maker, "generate", at, 2, step=step, lane="sessions", segment="phase")
        state(maker, "update", at + 1.5, 1.5, step=step, lane="trainer_0")
    store.commit([maker.build(final=True)])
    (found,) = breakdown(store, 1, 1).steps
    told = [(phase.name, phase.wall_ns / SECOND) for phase in found.phases]
    assert sorted(told) == [("generate", 1.5), ("update", 1.5)]
    assert found.idle_ns == 1 * SECOND


def test_role_without_states_is_broken_down_by_its_outer_spans(store, make):
    """As AReaL's scopes are: one around the step, others inside it next to the phases of sessions."""
    maker = make("t", role="trainer")
    for step in range(3):
        at = 4 * step
        state(maker, "train.step", at, 4, step=step, lane=None, segment="duration")
        state(maker, "generate", at, 2, step=step, lane="sessions", segment="phase")
        state(maker, "update", at + 2, 1, step=step, lane=None, segment="duration")
    store.commit([maker.build(final=True)])
    (found,) = breakdown(store, 1, 1).steps
    assert [(phase.name, phase.wall_ns / SECOND) for phase in found.phases] == [("generate", 2), ("update", 1)]
    assert found.idle_ns == 1 * SECOND


def test_running_step_has_no_breakdown_and_bad_ranges_are_refused(store, make):
    trainer = make("t", role="trainer")
    state(trainer, "update", 0, 4, step=0)
    state(trainer, "update", 5, 4, step=1)
    commit(store, trainer, final=False)
    assert [step.step for step in breakdown(store, 0, 5).steps] == [0]
    assert breakdown(store, 70, 71).steps == []
    assert breakdown(store, 0, 0, "no such role").steps == []
    with pytest.raises(QueryError):
        breakdown(store, 5, 4)


def verl_step(trainer, number, end, **timings):
    """The records of verl's logger at the end of a step: many gauges without a step, including the counter."""
    at = int(end * SECOND)
    trainer.sample("critic_rewards_mean", number / 10, at=at - 30_000)
    trainer.sample("training_global_step", number, at=at)
    for place, (name, value) in enumerate(timings.items()):
        trainer.sample(name, value, at=at + 20_000 * (place + 1))


def verl_run(make, lengths=(7, 5, 5)):
    """Three steps whose number is only in a gauge: generation on a replica, an update on two ranks."""
    trainer, replica = make("t"), make("replica")
    ranks = [make(f"r{rank}") for rank in range(2)]
    begin = 10.0
    for number, length in enumerate(lengths, 1):
        state(replica, "vllm_generate", begin, length - 3, lane="replica_0")
        for rank, maker in enumerate(ranks):
            state(maker, "actor_update", begin + length - 3, 2 + rank, lane=f"rank_{rank}")
        verl_step(trainer, number, begin + length, timing_s_step=length, actor_entropy=2.0 - number)
        begin += length
    return trainer, replica, *ranks


def test_gauge_that_holds_the_step_gives_it_to_all_that_carries_none(store, make, begin_ns):
    commit(store, *verl_run(make))
    assert bounds(store, begin_ns) == [(1, 10, 17), (2, 17, 22), (3, 22, 27)]
    with store.reader() as cursor:
        assert [(one.spans, one.errors) for one in queries.steps(cursor)] == [(3, 0)] * 3
        metrics = {(one.step, one.name): one.last for one in queries.step_metrics(cursor, 1, 3)}
        summary = queries.summary(cursor)
        (reward,) = queries.range_query(
            cursor, "critic_rewards_mean", start_ns=begin_ns, end_ns=begin_ns + LATER_NS, width=1, axis="step"
        )
        latest = queries.hotspots(cursor, queries.Scope(last_steps=1))
        second = queries.hotspots(cursor, queries.Scope(step=2))
    assert (summary.first_step, summary.last_step) == (1, 3)
    # Logged before the counter and after it, by the same call.
    assert [metrics[step, "critic_rewards_mean"] for step in (1, 2, 3)] == [0.1, 0.2, 0.3]
    assert [metrics[step, "actor_entropy"] for step in (1, 2, 3)] == [1.0, 0.0, -1.0]
    assert (reward.x, reward.y) == ([1, 2, 3], [0.1, 0.2, 0.3])
    assert {one.name: one.count for one in latest} == {"vllm_generate": 1, "actor_update": 2}
    assert {one.name: round(one.total_ns / SECOND, 6) for one in second} == {"vllm_generate": 2, "actor_update": 5}


def test_first_counted_step_begins_with_the_span_that_ran_when_its_time_was_taken(store, make, begin_ns):
    # The length was taken 0.125 s before it was logged. A span that was over by then stays outside, and so does one
    # that began long before.
    trainer, replica = make("t"), make("replica")
    for name, begin, length in (("load", 9.8, 0.1), ("watch", 5.0, 12.0), ("vllm_generate", 10.0, 4.0)):
        state(replica, name, begin, length, lane=name)
    verl_step(trainer, 1, 17.125, timing_s_step=7.0)
    commit(store, trainer, replica)
    assert bounds(store, begin_ns) == [(1, 10, 17.125)]
    with store.reader() as cursor:
        assert [one.spans for one in queries.steps(cursor)] == [1]


def test_the_list_of_metrics_names_the_reward_that_the_list_of_runs_shows(tmp_path, make):
    trainer = make("t", role="trainer")
    for step in range(3):
        state(trainer, "update", 10 * step, 8, step=step)
        trainer.sample("val/reward_mean", 0.9, at=(10 * step + 8) * SECOND, step=step)
        trainer.sample("critic/rewards/mean", 0.25, at=(10 * step + 8) * SECOND, step=step)
    directory = RunDirectory(tmp_path, min_free_bytes=0)
    with directory.open("run", create=True) as store:
        commit(store, trainer)
        with store.reader() as cursor:
            listed = {one.name: one.quantity for one in queries.metrics(cursor)}
    assert listed == {"critic/rewards/mean": "reward", "val/reward_mean": None}
    assert directory.get("run").reward == 0.25
    directory.close()


def test_search_by_a_counted_step_finds_and_names_what_was_recorded_in_its_time(store, make):
    commit(store, *verl_run(make))
    with store.reader() as cursor:
        found = queries.search_spans(cursor, queries.SpanConditions(step=2), order="oldest")
        every = queries.search_spans(cursor, queries.SpanConditions(name="vllm_generate"), order="oldest")
        detail = queries.span_detail(cursor, every[2].span_id)
        nothing = queries.search_spans(cursor, queries.SpanConditions(step=9))
    assert [(one.name, one.step) for one in found] == [("vllm_generate", 2), ("actor_update", 2), ("actor_update", 2)]
    assert [one.step for one in every] == [1, 2, 3]
    assert detail.span.step == 3
    assert nothing == []


def test_logs_and_events_name_the_counted_step_of_their_time(store, make, begin_ns):
    trainer, *others = verl_run(make)
    for at in (9, 18, 23):
        trainer.builder.add_log(time_ns=begin_ns + at * SECOND, level=20, message="line")
        trainer.builder.add_event(time_ns=begin_ns + at * SECOND, name="event", step=7 if at == 18 else None)
    commit(store, trainer, *others)
    with store.reader() as cursor:
        assert [one.step for one in queries.search_logs(cursor)] == [3, 2, None]
        assert [one.step for one in queries.search_logs(cursor, queries.LogConditions(step=2))] == [2]
        assert [one.step for one in queries.search_events(cursor)] == [3, 7, None]


def test_sessions_without_a_step_belong_to_the_counted_step_of_their_submission(store, make, begin_ns):
    commit(store, *verl_run(make))
    sessions = [
        queries.StoredSession(session_id=f"s{number}", submit_ts=begin_ns / SECOND + at, step=step)
        for number, (at, step) in enumerate(((18, None), (23, None), (23, 2)))
    ]
    with store.writing() as connection:
        write_entries(connection, {one.session_id: entry_of(one, 0) for one in sessions}, {}, [])
    with store.reader() as cursor:
        of_second, _ = queries.sessions(cursor, queries.SessionConditions(first_step=2, last_step=2))
        of_later, _ = queries.sessions(cursor, queries.SessionConditions(first_step=2))
    assert sorted(one.session_id for one in of_second) == ["s0", "s2"]
    assert sorted(one.session_id for one in of_later) == ["s0", "s1", "s2"]


def test_breakdown_of_counted_steps_shows_the_ranks_first(store, make):
    commit(store, *verl_run(make))
    found = breakdown(store, 1, 3)
    assert (found.role, found.roles) == ("worker", ["worker", "rollout"])
    assert [(seconds(step), step.lanes) for step in found.steps] == [({"actor_update": 2.5}, 2)] * 3
    rollout = breakdown(store, 1, 3, "rollout")
    assert [seconds(step) for step in rollout.steps] == [{"vllm_generate": length} for length in (4, 2, 2)]
    assert [step.idle_ns for step in rollout.steps] == [3 * SECOND] * 3


def test_first_counted_step_begins_with_the_first_span_where_nothing_says_how_long_it_took(store, make, begin_ns):
    trainer, worker = make("t"), make("w")
    state(worker, "actor_update", 4, 2, lane="rank_0")
    trainer.sample("training_global_step", 5, at=9 * SECOND)
    trainer.sample("training_global_step", 6, at=12 * SECOND)
    commit(store, trainer, worker)
    assert bounds(store, begin_ns) == [(5, 4, 9), (6, 9, 12)]


def test_resumed_run_counts_on_without_the_pause(store, make, begin_ns):
    first, second = make("t-1"), make("t-2")
    for trainer, number, end in ((first, 1, 5), (first, 2, 8), (second, 2, 104), (second, 3, 107)):
        verl_step(trainer, number, end, timing_s_step=3)
    commit(store, first, second)
    assert bounds(store, begin_ns) == [(1, 2, 5), (2, 101, 104), (3, 104, 107)]


def test_step_that_a_record_carries_wins_over_the_counter(store, make):
    trainer = make("t")
    verl_step(trainer, 1, 5, timing_s_step=3)
    trainer.sample("reward", 1.0, at=4 * SECOND, step=9)
    state(trainer, "validate", 3, 1, step=9)
    commit(store, trainer)
    with store.reader() as cursor:
        assert [one.name for one in queries.hotspots(cursor, queries.Scope(step=9))] == ["validate"]
        assert {one.name for one in queries.step_metrics(cursor, 9, 9)} == {"reward"}


def test_counter_whose_samples_carry_their_step_changes_nothing(store, make, begin_ns):
    maker = make("t", role="trainer")
    for step in (1, 2):
        state(maker, "update", 10 * step, 8, step=step)
        maker.sample("training_global_step", step, at=(10 * step + 8) * SECOND, step=step)
    state(maker, "cleanup", 30, 1)
    commit(store, maker)
    assert bounds(store, begin_ns) == [(1, 10, 20), (2, 20, 28)]
    with store.reader() as cursor:
        assert [one.count for one in queries.hotspots(cursor, queries.Scope(step=2))] == [1]


def test_running_step_of_a_counted_run_is_not_known_yet(store, make, begin_ns):
    makers = verl_run(make)
    state(makers[1], "vllm_generate", 27.1, 1, lane="replica_0", span_id=99)
    commit(store, *makers, final=False)
    assert bounds(store, begin_ns)[-1] == (3, 22, 27)
    with store.reader() as cursor:
        assert sum(one.spans for one in queries.steps(cursor)) == 9


@pytest.mark.parametrize(
    ("given", "lanes", "told"),
    [
        ({}, ["rank_3"], ("worker", 3)),
        ({}, ["replica_0", "rank_3"], ("rollout", 0)),
        ({}, ["rank_x", "my_rank_3", "slot_1"], ("", None)),
        ({"rank": 7}, ["rank_3"], ("worker", 7)),
        ({"role": "critic"}, ["rank_3"], ("critic", None)),
    ],
)
def test_role_and_rank_come_from_lanes_where_the_process_has_none(tmp_path, make, given, lanes, told):
    maker = make("p", **given)
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        maker.sample("loss", 1.0)
        commit(store, maker, final=False)  # it is known before its first lane
        for lane in lanes:
            state(maker, "work", 0, 1, lane=lane)
        commit(store, maker, final=False)
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0) as store:
        commit(store, maker)
        with store.reader() as cursor:
            (found,) = queries.processes(cursor, time.time_ns())
        assert (found.role, found.rank) == told


def _resumed_run(make):
    """Return batches of three trainers, two of which resumed the run at an earlier step, and of a rollout."""
    draw = random.Random(8)
    first, second, again = (make(f"t{number}", role="trainer") for number in range(3))
    rollout = make("r", role="rollout")
    batches = []
    for step in range(20):
        for maker, shift, last in ((first, 0, 11), (second, 0.2, 11), (again, 100, 20), (rollout, 3, 20)):
            if step < last and (maker is not again or step >= 8):
                status = "error" if draw.random() < 0.2 else "ok"
                state(maker, "update", 10 * step + shift, draw.uniform(5, 9), step=step, status=status)
                maker.span("setup", start=int((10 * step + shift) * SECOND), duration=SECOND)  # carries no step
        batches += [maker.build(final=step == 19) for maker in (first, second, again, rollout)]
    for batch in batches:
        batch.sent_ns = 0  # how long it takes here says nothing about clocks
    return batches


def _answers(store):
    with store.reader() as cursor:
        return [queries.steps(cursor, limit, now_ns=2**62) for limit in (1, 5, 200)]


def test_steps_are_the_same_from_sums_and_in_a_file_of_an_earlier_version(tmp_path, make, monkeypatch):
    batches = _resumed_run(make)
    with RunStore(tmp_path / "plain.duckdb", create=True) as plain:
        plain.commit(batches)
        expected = _answers(plain)
    assert len(expected[2]) == 20
    assert sum(step.errors for step in expected[2]) > 0
    for module in ("run_store", "rollup"):
        monkeypatch.setattr(f"rl_insight.store.{module}.ROLLUP_ROWS", 9)
    path = tmp_path / "summed.duckdb"
    with RunStore(path, create=True) as summed:
        for place in range(0, len(batches), 8):
            summed.commit(batches[place : place + 8])
        with summed.reader() as cursor:
            assert cursor.execute("SELECT sum(spans)::BIGINT > 30 FROM step_spans").fetchall() == [(True,)]
        assert _answers(summed) == expected
    with duckdb.connect(str(path)) as connection:
        connection.execute("DROP TABLE step_spans")
        connection.execute("UPDATE meta SET value = '4' WHERE key = 'schema_version'")
    with RunStore(path) as upgraded:
        assert _answers(upgraded) == expected
