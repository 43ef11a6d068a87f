"""Runs whose spans carry no step are diagnosed by the same steps as in queries: those of their step counter."""

from __future__ import annotations

import pytest

from rl_insight.diagnosis.feed import ReplayFeed
from rl_insight.diagnosis.model import RunModel
from rl_insight.diagnosis.run import replay
from rl_insight.store import RunStore, queries
from rl_insight.store.queries import top_findings
from tests.store.conftest import BEGIN_NS, Maker

SECOND = 1_000_000_000


@pytest.fixture
def store(tmp_path):
    with RunStore(tmp_path / "run.duckdb", min_free_bytes=0, create=True) as store:
        yield store


def verl_run(store, lengths, *, ranks=4, slow=lambda _step, _rank: 1.0, resumed_at=None):
    """Write a run as verl's logger does: a counter after each step, states on the lanes of ranks and a replica."""
    trainers = [Maker("trainer-1"), Maker("trainer-2")]
    replica, workers = Maker("replica"), [Maker(f"worker-{rank}") for rank in range(ranks)]
    begin = 10.0

    def state(maker, name, start, seconds, lane):
        maker.span(name, int(start * SECOND), int(seconds * SECOND), segment="state_interval", lane=lane)

    for step, length in enumerate(lengths, 1):
        is_resumed = resumed_at is not None and step >= resumed_at
        begin += 600.0 if step == resumed_at else 0.0
        state(replica, "vllm_generate", begin, length * 0.5, "replica_0")
        for rank, maker in enumerate(workers):
            state(maker, "actor_update", begin + length * 0.5, length * 0.3 * slow(step, rank), f"rank_{rank}")
        begin += length
        at = int(begin * SECOND)
        values = {"timing_s_step": length, "training_global_step": step, "actor_entropy": 1.0}
        for name, value in values.items():
            trainers[is_resumed].sample(name, value, at)
    makers = [*trainers[: 1 if resumed_at is None else 2], replica, *workers]
    batches = [maker.build(sent_ns=BEGIN_NS, final=True) for maker in makers]
    store.commit(batches, received_ns=[BEGIN_NS] * len(batches))


def model_at_the_end(cursor):
    feed = ReplayFeed(cursor)
    model = RunModel(feed)
    tick, last_ns = feed.first_ns, feed.newest_ns
    while tick < last_ns + 10 * SECOND:
        tick += 5 * SECOND
        model.apply(feed.tick(tick))
    return model


@pytest.mark.parametrize("resumed_at", [None, 4], ids=["whole", "resumed"])
def test_the_steps_are_those_that_queries_show(store, resumed_at):
    verl_run(store, [12, 9, 11, 10, 13, 9], resumed_at=resumed_at)
    with store.reader() as cursor:
        model = model_at_the_end(cursor)
        shown = queries.steps(cursor)
        breakdown = queries.breakdown(cursor, 1, 6)
    found = [(one.number, one.start_ns, one.end_ns) for one in model.steps.closed]
    assert found == [(one.step, one.start_ns, one.end_ns) for one in shown]
    assert len(found) == 6
    assert model.lead == breakdown.role == "worker"
    for step, one in zip(model.steps.closed, breakdown.steps, strict=True):
        seconds = {phase.name: phase.wall_ns / SECOND for phase in one.phases if phase.wall_ns}
        assert step.phases == pytest.approx(seconds)
        assert step.covered_s == pytest.approx(sum(seconds.values()))


def test_a_rank_that_is_slow_in_every_step_is_named(store):
    verl_run(store, [10] * 14, slow=lambda _step, rank: 1.5 if rank == 2 else 1.0)
    with store.reader() as cursor:
        report = replay(cursor)
    found = [one for one in top_findings(report.findings) if one.rule == "straggler"]
    assert [(one.culprit["rank"], one.culprit["phase"]) for one in found] == [(2, "actor_update")]


def test_a_healthy_run_is_quiet(store):
    verl_run(store, [10, 9, 11, 10, 10, 9, 11, 10, 10, 9, 11, 10])
    with store.reader() as cursor:
        report = replay(cursor)
    assert [one.title for one in report.findings if one.severity != "info"] == []


def test_a_state_that_ends_after_its_step_belongs_to_the_step_in_which_it_began(store):
    trainer, worker = Maker("t"), Maker("w")
    for step in range(1, 5):
        trainer.sample("training_global_step", step, at=step * 20 * SECOND)
        trainer.sample("timing_s_step", 20.0, at=step * 20 * SECOND)
        start = (step * 20 - 5) * SECOND
        worker.span("save_checkpoint", start, 12 * SECOND, segment="state_interval", lane="rank_0")
    store.commit([maker.build(sent_ns=BEGIN_NS, final=True) for maker in (trainer, worker)])
    with store.reader() as cursor:
        model = model_at_the_end(cursor)
        (first, *_) = queries.search_spans(cursor, order="oldest")
    recent = model.roles.recent["worker"]
    assert (recent[0].step, first.step) == (1, 1)
