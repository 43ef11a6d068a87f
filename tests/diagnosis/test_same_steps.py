"""The steps that diagnosis evaluates are those that queries show, and both are those computed by hand."""

from __future__ import annotations

import random

import pytest

from rl_insight.diagnosis.feed import ReplayFeed
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.run import replay
from rl_insight.intake import silence_ns
from rl_insight.store import RunStore, queries
from rl_insight.store.queries.step_definition import Lifetime, generations, leading_role, running_until_ns
from tests.store.conftest import BEGIN_NS, Maker

SECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        yield store


def trainer(name="trainer-0", role="trainer", started=0, **fields):
    return Maker(name, role=role, started_ns=BEGIN_NS + started * SECOND, **fields)


def work(maker, step, start, length, name="update", **fields):
    maker.span(
        name, int(start * SECOND), int(length * SECOND) if length else -1, segment="state_interval", step=step, **fields
    )


def commit(store, *makers, crashed=(), heard):
    """Store what processes recorded, and when they were last heard from; they exited cleanly unless they crashed."""
    heard_ns = BEGIN_NS + heard * SECOND
    for maker in makers:
        is_final = maker not in crashed
        store.commit([maker.build(sent_ns=heard_ns, final=is_final)], received_ns=[heard_ns])


def shown(store, **options):
    with store.reader() as cursor:
        found = queries.steps(cursor, **options)
    return [(one.step, one.start_ns, one.end_ns) for one in found]


def observed(store, until=None):
    """Return the steps that diagnosis evaluated, a repeated one by its last time; and the model."""
    with store.reader() as cursor:
        feed = ReplayFeed(cursor)
        model = RunModel(feed)
        tick = feed.first_ns
        last_ns = feed.newest_ns + 10 * SECOND if until is None else BEGIN_NS + until * SECOND
        while tick < last_ns:
            tick += 5 * SECOND
            model.apply(feed.tick(tick))
    found = {one.number: (one.number, one.start_ns, one.end_ns) for one in model.steps.closed}
    return sorted(found.values(), key=lambda one: one[1]), model


def truth(*steps):
    return [(step, BEGIN_NS + int(start * SECOND), BEGIN_NS + int(end * SECOND)) for step, start, end in steps]


def test_a_run_that_ended(store):
    one = trainer()
    for step in range(4):
        work(one, step, 10 * step, 8)
    one.span("cleanup", 38 * SECOND, 4 * SECOND, segment="state_interval")  # after the last step
    commit(store, one, heard=42)
    assert shown(store) == observed(store)[0] == truth((0, 0, 10), (1, 10, 20), (2, 20, 30), (3, 30, 38))


def test_a_crash_leaves_a_step_that_diagnosis_compares_with_none(store):
    one = trainer()
    for step in range(4):
        work(one, step, 10 * step, 8 if step < 3 else 2)
    commit(store, one, crashed=[one], heard=33)
    assert shown(store) == truth((0, 0, 10), (1, 10, 20), (2, 20, 30), (3, 30, 32))
    steps, model = observed(store, until=60)
    assert steps == truth((0, 0, 10), (1, 10, 20), (2, 20, 30))
    assert model.lead_has_stopped()


@pytest.mark.parametrize("rank", [0, None], ids=["rank", "no rank"])
def test_a_resumed_run_has_no_step_over_the_pause(store, rank):
    first, second = trainer(rank=rank), trainer("trainer-again", started=300, rank=rank)
    for step, start in ((4, 0), (5, 10), (6, 20)):
        work(first, step, start, 8)
    for step, start in ((6, 320), (7, 330)):
        work(second, step, start, 9)
    commit(store, first, crashed=[first], heard=29)
    commit(store, second, heard=340)
    expected = truth((4, 0, 10), (5, 10, 20), (6, 320, 330), (7, 330, 339))
    steps, model = observed(store)
    assert shown(store) == steps == expected
    assert [(one.number, one.seconds) for one in model.steps.closed][2] == (6, 8.0)


def test_a_run_that_was_restarted_within_seconds_has_no_step_of_both_parts(store):
    first, second = trainer(rank=None), trainer("trainer-again", started=33, rank=None)
    for step, start in ((4, 0), (5, 10), (6, 20)):
        work(first, step, start, 8)
    for step, start in ((6, 36), (7, 46)):
        work(second, step, start, 9)
    commit(store, first, crashed=[first], heard=29)
    commit(store, second, heard=56)
    assert shown(store) == truth((4, 0, 10), (5, 10, 20), (6, 36, 46), (7, 46, 55))


def test_a_rank_that_is_replaced_while_the_others_work_does_not_split_steps(store):
    ranks = [trainer(f"trainer-{rank}", rank=rank) for rank in range(3)]
    again = trainer("trainer-2-again", started=45, rank=2)
    for step in range(8):
        for rank, maker in enumerate(ranks):
            if step < 4 or rank < 2:
                work(maker, step, 10 * step, 9)
    for step in range(5, 8):
        work(again, step, 10 * step + 1, 8)
    commit(store, ranks[2], crashed=[ranks[2]], heard=39)
    commit(store, again, *ranks[:2], heard=80)
    steps, model = observed(store)
    assert shown(store) == steps == truth(*((step, 10 * step, 10 * step + 10) for step in range(7)), (7, 70, 79))
    assert [one.number for one in model.steps.closed if one.is_warm_up] == [0, 1, 2, 5, 6, 7]


@pytest.mark.parametrize("is_imported", [False, True], ids=["live", "imported"])
def test_ranks_that_start_one_after_the_other_are_one_generation(store, is_imported):
    ranks = [trainer(f"trainer-{rank}", rank=rank) for rank in range(4)]
    for step in range(5):
        for rank, maker in enumerate(ranks):
            work(maker, step, 40 * step + 10 * rank, 4)
    if is_imported:
        batches = [maker.build(sent_ns=0, final=True) for maker in ranks]
        store.commit(batches, received_ns=[BEGIN_NS + 900 * SECOND] * len(batches))
    else:
        commit(store, *ranks, heard=195)
    steps, model = observed(store)
    assert shown(store) == steps == truth(*((step, 40 * step, 40 * step + 40) for step in range(4)), (4, 160, 194))
    assert {one.generation for one in model.steps.closed} == {0}


def test_a_rank_that_joins_in_the_middle_of_a_state_is_no_resume(store):
    ranks = [trainer(f"trainer-{rank}", rank=rank) for rank in range(2)]
    work(ranks[0], 0, 0, 9)
    work(ranks[1], 0, 0, 9)
    work(ranks[0], 1, 10, 0)  # still running
    again = trainer("trainer-1-again", started=15, rank=1)
    work(again, 1, 20, 4)
    commit(store, ranks[1], crashed=[ranks[1]], heard=9)
    commit(store, ranks[0], again, crashed=[ranks[0], again], heard=25)
    assert [one[:2] for one in shown(store, now_ns=BEGIN_NS + 26 * SECOND)] == [
        (0, BEGIN_NS),
        (1, BEGIN_NS + 10 * SECOND),
    ]
    assert observed(store, until=26)[0] == truth((0, 0, 10))


def test_a_driver_leads_the_ranks_that_it_calls(store):
    driver, ranks = trainer("d", role="driver"), [trainer(f"a{rank}", role="actor", rank=rank) for rank in range(4)]
    for step in range(5):
        work(driver, step, 10 * step, 6, name="generate")
        work(driver, step, 10 * step + 6, 3)
        for maker in ranks:
            work(maker, step, 10 * step + 6, 3)
    commit(store, driver, *ranks, heard=50)
    steps, model = observed(store)
    assert shown(store) == steps == truth(*((step, 10 * step, 10 * step + 10) for step in range(4)), (4, 40, 49))
    assert model.lead == "driver"


@pytest.mark.parametrize("late", [0, 3], ids=["together", "one after the other"])
def test_of_equal_roles_the_first_by_name_leads(store, late):
    one, other = trainer("p", role="policy"), trainer("a", role="actor")
    for step in range(5):
        work(one, step, 10 * step, 3.1)
        work(other, step, 10 * step + 2 + late, 3)
    commit(store, one, other, heard=50)
    steps, model = observed(store)
    expected = [(step, 10 * step + 2 + late, 10 * step + 12 + late) for step in range(4)] + [(4, 42 + late, 45 + late)]
    assert shown(store) == truth(*expected)
    assert steps == truth(*expected)
    assert model.lead == "actor"


def test_of_equal_roles_the_one_with_one_step_at_a_time_leads(store):
    ahead, head = trainer("a", role="actor"), trainer("p", role="policy")
    for step in range(6):
        work(ahead, step, 10 * step, 25)
        work(head, step, 10 * step + 3, 7)
    commit(store, ahead, head, heard=75)
    steps, model = observed(store)
    assert model.lead == "policy"
    expected = truth(*((step, 10 * step + 3, 10 * step + 13) for step in range(5)), (5, 53, 60))
    assert shown(store) == expected
    assert steps == expected[-len(steps) :] != []  # from when the overlap was seen


def test_an_import_has_complete_steps(store):
    one = trainer()
    for step in range(4):
        work(one, step, 10 * step, 6)
    store.commit([one.build(sent_ns=0, final=True)], received_ns=[BEGIN_NS + 900 * SECOND])
    assert shown(store) == observed(store)[0] == truth((0, 0, 10), (1, 10, 20), (2, 20, 30), (3, 30, 36))


def log(maker, step, *times):
    for time in times:
        maker.sample("loss", 0.5, int(time * SECOND), step=step)


def test_steps_of_metrics_alone(store):
    """A rank that lags does not begin a step again."""
    ranks = [trainer(f"trainer-{rank}", rank=rank) for rank in range(2)]
    for step in range(5):
        log(ranks[0], step, 10 * step, 10 * step + 4)
        log(ranks[1], step, 10 * step + 1, 10 * step + 12)
    commit(store, *ranks, crashed=ranks, heard=53)
    ended = truth(*((step, 10 * step, 10 * step + 10) for step in range(4)))
    now_ns = BEGIN_NS + 55 * SECOND
    assert shown(store, now_ns=now_ns) == [*ended, (4, BEGIN_NS + 40 * SECOND, None)]
    steps, model = observed(store, until=55)
    assert steps == ended
    assert (model.steps.current, model.steps.current_start_ns) == (4, BEGIN_NS + 40 * SECOND)


def test_a_finding_in_metrics_alone_names_the_step_of_its_time(store):
    """Steps 40 and later take twice as long: the page shows step 40 as the first slow one, and so does the finding."""
    one, now = trainer(), 0.0
    for step in range(60):
        log(one, step, now)
        now += 10 if step < 40 else 20
    commit(store, one, heard=int(now))
    slow = [step for step, start_ns, end_ns in shown(store) if end_ns is not None and end_ns - start_ns > 15 * SECOND]
    assert slow[0] == 40
    with store.reader() as cursor:
        (found,) = [one for one in replay(cursor).findings if one.rule == "step_regression"]
    assert found.first_step == 40


@pytest.mark.parametrize("step_time", ["timing_s/step", "train/step_time"])
def test_the_first_counted_step_begins_with_the_span_that_was_running(store, step_time):
    one, replica = Maker("t"), Maker("replica")
    replica.span("vllm_generate", 10 * SECOND, 4 * SECOND, segment="state_interval", lane="replica_0")
    replica.span("load", int(9.8 * SECOND), SECOND // 10, segment="state_interval", lane="load")
    for number, end in ((1, 17.125), (2, 25.0)):
        one.sample("training_global_step", number, int(end * SECOND))
        one.sample(step_time, 7.0, int(end * SECOND) + 20_000)
    commit(store, one, replica, heard=26)
    assert shown(store) == observed(store)[0] == truth((1, 10, 17.125), (2, 17.125, 25))


def test_the_first_counted_step_begins_with_a_span_that_is_still_open(store):
    one, driver = Maker("t"), Maker("d")
    driver.span("fit", 10 * SECOND, -1, segment="state_interval", lane="rank_0")
    one.sample("training_global_step", 1, int(17.125 * SECOND))
    one.sample("timing_s/step", 7.0, int(17.125 * SECOND))
    commit(store, one, driver, crashed=[driver], heard=20)
    assert shown(store) == observed(store)[0] == truth((1, 10, 17.125))


def test_a_counter_takes_precedence_over_steps_of_a_role_that_rarely_leads(store):
    one, rollout = Maker("t"), Maker("r", role="rollout")
    for number in range(1, 6):
        work(rollout, number, 10 * number - 4, 9, name="generate")
        one.sample("training_global_step", number, (10 * number + 10) * SECOND)
        one.sample("timing_s/step", 10.0, (10 * number + 10) * SECOND)
    commit(store, one, rollout, heard=61)
    assert shown(store) == observed(store)[0] == truth(*((step, 10 * step, 10 * step + 10) for step in range(1, 6)))


def test_a_finding_says_which_lane_its_time_is_from(store):
    ranks = [trainer(f"trainer-{rank}", rank=rank) for rank in range(4)]
    for step in range(3):
        for rank, maker in enumerate(ranks):
            work(maker, step, 20 * step, 18 if rank == 3 else 6)
        work(ranks[0], step, 20 * step + 7, 4, name="save_checkpoint")
    commit(store, *ranks, heard=60)
    _, model = observed(store)
    with store.reader() as cursor:
        (shown_step,) = queries.breakdown(cursor, 1, 1).steps
    step = model.steps.closed[1]
    assert step.phases == {"update": 6.0, "save_checkpoint": 4.0}
    assert {one.name: one.wall_ns / SECOND for one in shown_step.phases} == {"update": 9.0, "save_checkpoint": 1.0}
    average = "the breakdown of a step shows the average of 4 lanes."
    assert step.measured_on("update") == f" The time is that of the median lane; {average}"
    assert step.measured_on("save_checkpoint") == f" The time is that of the lane where it takes longest; {average}"
    assert step.measured_on("timing_s/gen") == ""


def test_generations_follow_each_other_without_overlap():
    """Property: processes whose times overlap are one generation, and each generation begins after the one before."""
    draw = random.Random(3)
    for _ in range(200):
        lives = []
        for process in range(draw.randrange(1, 12)):
            first = draw.randrange(1_000)
            until = first + draw.randrange(300) if draw.random() < 0.2 else None
            lives.append(Lifetime(process, None, first, first, first + draw.randrange(120), until))
        found = generations(lives)
        ends = {one.process: max(one.last_ns, one.running_until_ns or 0) for one in lives}
        for one in lives:
            for other in lives:
                is_before = found[one.process] < found[other.process]
                assert not is_before or ends[one.process] < other.first_ns
        assert sorted(set(found.values())) == list(range(max(found.values()) + 1))


def test_a_process_has_ended_once_it_is_silent():
    until = running_until_ns(100, 5.0, now_ns=100)
    assert until == 100 + silence_ns(5.0)
    assert running_until_ns(100, 5.0, now_ns=until + 1) == 100
    first = Lifetime(0, None, 0, 0, 90, until)
    assert generations([first, Lifetime(1, None, 0, until, until, None)]) == {0: 0, 1: 0}
    assert generations([first, Lifetime(1, None, 0, until + 1, until + 1, None)]) == {0: 0, 1: 1}


def test_a_role_named_like_a_trainer_leads_whatever_its_overlap():
    assert leading_role({"worker": {0: (0, 1), 1: (1, 2)}, "trainer": {0: (0, 9), 1: (1, 9)}}) == "trainer"
