from __future__ import annotations

import asyncio
import gc
import random
import threading
import weakref
from fractions import Fraction

import pytest

import rl_insight as insight
from rl_insight.monitor import Monitor
from rl_insight.recorder.session_producer import nothing_to_join
from rl_insight.testing import START_NS, CaptureMonitor

START = START_NS / 1e9


def test_a_second_start_of_an_execution_that_runs_does_not_count(insight_capture, only_record):
    clock = insight_capture.clock
    with insight.session() as session:
        for name in ("execution_start", "execution_start", "execution_end", "execution_start", "execution_end"):
            session.mark(name)
            clock.advance(0.5)
    record = only_record(insight_capture)
    starts = [phase["start_ts"] - START for phase in record["phases"]["execution"]]
    assert (starts, record["execution_s"], record["total_s"]) == ([0.0, 1.5], 1.5, 2.5)


def test_the_sample_record_of_the_design_is_reproduced_field_by_field(insight_capture, only_record):
    clock = insight_capture.clock
    stats = {"accepted": 8, "enqueued": 192, "rejected": 0, "running": 56}
    with insight.session(task_id=3, session_id=0, step=7, model_version=12) as session:
        clock.advance(0.25)
        session.mark("enqueued")
        clock.advance(0.5)
        session.mark("execution_start")
        with insight.phase("generate", tokens=512):
            clock.advance(2.0)
        with insight.phase("reward"):
            clock.advance(0.125)
        session.mark("execution_end")
        clock.advance(0.0625)
        session.count("turns")
        session.finalize("accepted", reward=1.0, tokens=512, rollout_stats=stats)
    clock.advance(1.0)
    session.mark("consumed")
    record = only_record(insight_capture)
    assert list(record.items()) == [
        ("task_id", 3),
        ("session_id", 0),
        ("status", "accepted"),
        ("submit_ts", START),
        ("enqueue_ts", START + 0.25),
        ("wait_return_ts", START + 3.9375),
        ("finalized_ts", START + 2.9375),
        ("rollout_stats", stats),
        ("queue_wait_s", 0.25),
        ("runner_wait_s", 0.5),
        ("execution_s", 2.125),
        ("post_wait_s", 1.0625),
        ("total_s", 3.9375),
        ("generate_s", 2.0),
        ("reward_s", 0.125),
        (
            "phases",
            {
                "execution": [{"start_ts": START + 0.75, "end_ts": START + 2.875, "outcome": "ok"}],
                "generate": [
                    {
                        "start_ts": START + 0.75,
                        "end_ts": START + 2.75,
                        "outcome": "ok",
                        "payload": {"tokens": 512},
                    }
                ],
                "reward": [{"start_ts": START + 2.75, "end_ts": START + 2.875, "outcome": "ok"}],
            },
        ),
        ("counters", {"turns": 1}),
        ("step", 7),
        ("model_version", 12),
        ("reward", 1.0),
        ("tokens", 512),
    ]
    assert record["reward_calc_s"] == 0.125


def test_rank_and_role_are_those_of_the_owning_process(records):
    monitor = CaptureMonitor({"role": "rollout", "rank": 4})
    with monitor.session():
        pass
    (record,) = records(monitor).values()
    assert (record["rank"], record["role"]) == (4, "rollout")


def test_what_is_absent_is_left_out(insight_capture, only_record):
    with insight.session():
        pass
    assert set(only_record(insight_capture)) == {"session_id", "status", "submit_ts", "finalized_ts", "total_s"}


def test_session_and_phases_are_spans_with_the_sessions_id_and_step(insight_capture):
    with insight.session(step=7, prompt_length=30) as session, insight.phase("generate"), insight.trace_span("decode"):
        pass
    spans = {span.name: span for span in insight_capture.spans}
    assert [spans[name].segment for name in ("session", "generate", "decode")] == ["session", "phase", "duration"]
    assert {span.session_id for span in spans.values()} == {session.session_id}
    assert {span.step for span in spans.values()} == {7}
    assert spans["generate"].parent_id == spans["session"].span_id
    assert spans["session"].attributes == {"prompt_length": 30}


def test_outside_of_the_block_nothing_belongs_to_the_session(insight_capture):
    with insight.session(step=7):
        pass
    with insight.trace_span("after"):
        pass
    after = insight_capture.span("after")
    assert (after.session_id, after.step, after.parent_id) == (None, None, None)
    assert insight.current_session() is None


@pytest.mark.parametrize(
    ("error", "status", "reason", "outcome"),
    [
        (ValueError("bad answer"), "failed", "ValueError", "error"),
        (asyncio.CancelledError(), "cancelled", "asyncio.exceptions.CancelledError", "cancelled"),
        (KeyboardInterrupt(), "cancelled", "KeyboardInterrupt", "cancelled"),
    ],
    ids=["failed", "cancelled", "interrupted"],
)
def test_an_exception_ends_phase_and_session_and_propagates_unchanged(
    insight_capture, only_record, error, status, reason, outcome
):
    with pytest.raises(type(error)) as caught, insight.session(), insight.phase("generate"):
        raise error
    assert caught.value is error
    record = only_record(insight_capture)
    assert (record["status"], record["reason"]) == (status, reason)
    assert record["phases"]["generate"][0]["outcome"] == outcome
    assert insight_capture.span("session").status == outcome


def test_an_exception_that_the_session_survives_does_not_fail_it(insight_capture, only_record):
    with insight.session():
        with pytest.raises(OSError), insight.phase("toolcall"):
            raise OSError
        with insight.phase("toolcall"):
            pass
    record = only_record(insight_capture)
    assert record["status"] == "accepted"
    assert [phase["outcome"] for phase in record["phases"]["toolcall"]] == ["error", "ok"]


def test_what_finalize_said_outlasts_an_exception(insight_capture, only_record):
    @insight.session()
    def rollout():
        insight.current_session().finalize("rejected", "too long")
        raise ValueError

    with pytest.raises(ValueError):
        rollout()
    record = only_record(insight_capture)
    assert (record["status"], record["reason"]) == ("rejected", "too long")
    assert insight_capture.losses == {}


@pytest.mark.parametrize("reward", [1, True, Fraction(1, 1), 1.0])
def test_a_reward_is_always_a_float(insight_capture, only_record, reward):
    with insight.session() as session:
        session.finalize("accepted", reward=reward)
    found = only_record(insight_capture)["reward"]
    assert (found, type(found)) == (1.0, float)


def test_the_first_finalize_counts_and_the_second_is_warned_about_once(insight_capture, only_record, caplog):
    with insight.session() as session:
        session.finalize("accepted", reward=1.0)
        insight_capture.clock.advance(1.0)
        session.finalize("rejected", reward=0.0)
        session.finalize("failed")
    record = only_record(insight_capture)
    assert (record["status"], record["reward"], record["total_s"]) == ("accepted", 1.0, 0.0)
    assert insight_capture.losses == {"sessions/finalized_twice": 2}
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("call", "loss"),
    [
        (lambda s: s.finalize("pending"), "sessions/bad_status"),
        (lambda s: s.finalize("lost"), "sessions/bad_status"),
        (lambda s: s.finalize("won"), "sessions/bad_status"),
        (lambda s: s.finalize(None), "sessions/bad_status"),
        (lambda s: s.mark("begun"), "sessions/bad_mark"),
        (lambda s: s.mark(None), "sessions/bad_mark"),
        (lambda s: s.mark("execution_end"), "sessions/phase_not_open"),
        (lambda s: s.close_phase("generate"), "sessions/phase_not_open"),
        (lambda s: s.count("turns", "many"), "sessions/not_a_number"),
        (lambda s: s.update(reward="high"), "sessions/not_a_number"),
    ],
)
def test_wrong_use_is_counted_and_never_raised(insight_capture, only_record, call, loss):
    with insight.session() as session:
        call(session)
    assert insight_capture.losses == {loss: 1}
    assert only_record(insight_capture)["status"] == "accepted"


@pytest.mark.parametrize("step", ["7", 7.5, 2**56, object()])
def test_a_step_that_is_none_is_left_out(insight_capture, only_record, step):
    with insight.session(step=step):
        pass
    assert "step" not in only_record(insight_capture)
    assert insight_capture.losses == {"steps/bad_step": 1}


def test_the_step_that_trains_on_a_sample_is_set_after_its_end(insight_capture, only_record):
    with insight.session(step=3, model_version=2) as session:
        insight_capture.flush()
    session.update(step=5)
    session.update(step="six")
    record = only_record(insight_capture)
    assert (record["status"], record["step"], record["model_version"]) == ("accepted", 5, 2)
    assert insight_capture.losses == {"steps/bad_step": 1}


@pytest.mark.parametrize(
    "odd",
    [float("nan"), float("inf"), 2**80, "\ud800", b"bytes", object, {"a": {1, 2}}, [1, None]],
    ids=["nan", "inf", "large", "surrogate", "bytes", "class", "set", "list"],
)
def test_odd_values_do_not_cost_the_rest_of_the_record(insight_capture, only_record, odd):
    with insight.session(task_id=odd, session_id=odd, model_version=odd, rollout_stats=odd) as session:
        session.count("turns")
        with insight.phase("generate", value=odd):
            pass
        session.finalize("accepted", reason=odd, reward=odd, tokens=odd)
    record = only_record(insight_capture)
    assert (record["status"], record["counters"]) == ("accepted", {"turns": 1})
    assert "generate_s" in record


def test_secrets_are_redacted_from_the_record(insight_capture, only_record):
    with insight.session() as session:
        session.finalize("failed", "Authorization: Bearer abcdefghijklmnop1234")
    assert only_record(insight_capture)["reason"] == "Authorization: [redacted]"


def test_overlapping_phases_of_one_name_are_kept_apart_and_counted_once(insight_capture, only_record):
    clock = insight_capture.clock
    with insight.session():
        first, second = insight.phase("toolcall", tool="a"), insight.phase("toolcall", tool="b")
        first.__enter__()
        clock.advance(1.0)
        second.__enter__()
        clock.advance(1.0)
        first.__exit__(None, None, None)
        clock.advance(1.0)
        second.__exit__(None, None, None)
    record = only_record(insight_capture)
    starts = [(phase["payload"]["tool"], phase["end_ts"] - phase["start_ts"]) for phase in record["phases"]["toolcall"]]
    assert starts == [("a", 2.0), ("b", 2.0)]
    assert record["toolcall_s"] == 3.0


def test_a_phase_named_like_a_lifecycle_field_does_not_overwrite_it(insight_capture, only_record):
    with insight.session():
        with insight.phase("total"):
            insight_capture.clock.advance(1.0)
        insight_capture.clock.advance(1.0)
    record = only_record(insight_capture)
    assert record["total_s"] == 2.0
    assert len(record["phases"]["total"]) == 1


def test_an_open_phase_shows_as_open(insight_capture, only_record):
    with insight.session(), insight.phase("generate"):
        insight_capture.clock.advance(10.0)
        record = only_record(insight_capture)
    assert record["status"] == "pending"
    assert record["phases"]["generate"] == [{"start_ts": START, "outcome": "open"}]
    assert "generate_s" not in record


def test_a_session_can_outlive_blocks(insight_capture, only_record):
    session = insight.session(task_id="t").submit()
    insight_capture.clock.advance(1.0)
    with session.use():
        assert insight.current_session() is session
        with insight.phase("generate"):
            insight_capture.clock.advance(1.0)
    assert insight.current_session() is None
    assert only_record(insight_capture)["status"] == "pending"
    session.finalize("dropped", "stale")
    record = only_record(insight_capture)
    assert (record["status"], record["reason"], record["total_s"]) == ("dropped", "stale", 2.0)
    assert insight_capture.span("session").duration_ns == 2_000_000_000


def test_open_phases_end_with_their_session(insight_capture, only_record):
    @insight.session()
    def rollout():
        insight.current_session().open_phase("execution", {"worker": 3})
        insight_capture.clock.advance(1.0)
        raise ValueError

    with pytest.raises(ValueError):
        rollout()
    (phase,) = only_record(insight_capture)["phases"]["execution"]
    assert (phase["outcome"], phase["payload"]) == ("error", {"worker": 3})


def test_marks_count_the_first_time(insight_capture, only_record):
    with insight.session() as session:
        session.mark("enqueued")
        insight_capture.clock.advance(1.0)
        session.mark("enqueued")
    assert only_record(insight_capture)["queue_wait_s"] == 0.0


def test_many_changes_between_two_flushes_are_one_snapshot(insight_capture):
    with insight.session() as session:
        for _ in range(100):
            session.count("turns")
        insight_capture.flush()
        session.count("turns")
    snapshots = [record for record in insight_capture.records if type(record).__name__ == "SessionSnapshot"]
    assert [snapshot.record["counters"] for snapshot in snapshots] == [{"turns": 100}, {"turns": 101}]


def test_threads_count_without_losing_anything(insight_capture, only_record):
    with insight.session() as session:

        def count():
            for _ in range(2_000):
                session.count("tokens", 3)

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            insight_capture.flush()
        for thread in threads:
            thread.join()
    assert only_record(insight_capture)["counters"] == {"tokens": 24_000}


def test_ids_are_unique_across_processes_and_callers_may_give_their_own():
    monitors = [Monitor(), Monitor()]
    ids = []
    for monitor in monitors:
        monitor.init(config={"server": {"backend": "none"}})
        for _ in range(100):
            with monitor.session() as session:
                ids.append(session.session_id)
        with monitor.session(session_id="mine") as session:
            assert session.session_id == "mine"
        monitor.finish()
    assert len(set(ids)) == 200


def test_sessions_of_a_task_carry_its_id(insight_capture, records):
    with insight.task("gsm8k-17", split="train") as task:
        with insight.session():
            pass
        with insight.session(task_id="other"):
            pass
    with insight.task(), insight.session():
        pass
    task_ids = [record["task_id"] for record in records(insight_capture).values()]
    assert task.task_id == "gsm8k-17"
    assert task_ids[:2] == ["gsm8k-17", "other"]
    assert task_ids[2] not in (None, "gsm8k-17")
    first = next(span for span in insight_capture.spans if span.segment == "task")
    assert first.attributes == {"split": "train", "task_id": "gsm8k-17"}


def test_memory_of_finished_sessions_is_released(insight_capture):
    class Answer:
        pass

    answer = Answer()
    released = weakref.ref(answer)
    with insight.session(answer=answer):
        del answer
    insight_capture.flush()
    gc.collect()
    assert released() is None


def test_nothing_happens_while_nothing_is_recorded():
    monitor = Monitor()
    monitor._join = nothing_to_join
    with monitor.session(task_id=1) as session, monitor.phase("generate"), monitor.task("t"):
        session.count("turns")
        session.mark("enqueued")
        session.update(reward=1.0)
        session.finalize("accepted")
        session.drop()
        with session.submit().use():
            pass
    assert monitor.current_session() is None


class TestDecorators:
    def test_each_call_is_a_session_of_its_own(self, insight_capture, records):
        @insight.session(task_id="t", step=3)
        def rollout(answer):
            """Roll out."""
            with insight.phase("generate"):
                return answer + 1

        assert [rollout(1), rollout(answer=2)] == [2, 3]
        found = records(insight_capture)
        assert len(found) == 2
        assert all(
            record["task_id"] == "t" and record["step"] == 3 and "generate_s" in record for record in found.values()
        )
        assert (rollout.__name__, rollout.__doc__) == ("rollout", "Roll out.")

    def test_coroutine_functions(self, insight_capture, records):
        @insight.phase("reward", judge="rule")
        async def score():
            await asyncio.sleep(0)
            return 1.0

        @insight.session(task_id="t")
        async def rollout():
            return await score()

        async def main():
            return await asyncio.gather(rollout(), rollout())

        assert asyncio.run(main()) == [1.0, 1.0]
        found = records(insight_capture)
        assert [record["phases"]["reward"][0]["payload"] for record in found.values()] == [{"judge": "rule"}] * 2

    def test_a_decorated_function_that_fails_fails_its_session(self, insight_capture, only_record):
        @insight.session()
        def rollout():
            raise LookupError

        with pytest.raises(LookupError):
            rollout()
        assert only_record(insight_capture)["status"] == "failed"

    def test_decorated_before_recording_begins(self):
        monitor = Monitor()
        calls = []

        @monitor.session(task_id="t")
        @monitor.phase("generate")
        def rollout():
            calls.append(monitor.current_session())

        rollout()
        monitor.init(config={"server": {"backend": "none"}})
        rollout()
        monitor.finish()
        rollout()
        assert [call is not None for call in calls] == [False, True, False]

    def test_methods_static_methods_and_class_methods(self, insight_capture, only_record):
        class Worker:
            @insight.phase("a")
            def plain(self):
                return self

            @insight.phase("b")
            @staticmethod
            def static():
                return "static"

            @insight.phase("c")
            @classmethod
            def of_class(cls):
                return cls

        worker = Worker()
        with insight.session():
            assert worker.plain() is worker
            assert (worker.static(), worker.of_class()) == ("static", Worker)
        assert list(only_record(insight_capture)["phases"]) == ["a", "b", "c"]

    def test_a_generators_phase_covers_its_iteration(self, insight_capture, only_record):
        @insight.phase("stream")
        def stream():
            yield 1
            insight_capture.clock.advance(1.0)
            yield 2

        with insight.session():
            assert list(stream()) == [1, 2]
        assert only_record(insight_capture)["stream_s"] == 1.0

    @pytest.mark.parametrize("make", [insight.session, insight.task], ids=["session", "task"])
    def test_generators_cannot_be_sessions_or_tasks(self, insight_capture, make):
        def stream():
            yield 1

        with pytest.raises(TypeError, match="generator"):
            make()(stream)

    @pytest.mark.parametrize("thing", [3, "f", None, int], ids=repr)
    def test_what_is_not_a_function_is_refused(self, insight_capture, thing):
        with pytest.raises(TypeError, match="decorates functions"):
            insight.phase("p")(thing)


def test_two_hundred_interleaved_sessions_give_exactly_the_right_records(insight_capture, records):
    """Sessions of one event loop, with overlapping, failing and cancelled phases, checked against a plan."""
    rng = random.Random(7)
    plans = {
        f"s{number}": {
            "tools": rng.randint(0, 4),
            "turns": rng.randint(1, 5),
            "end": rng.choice(["accept", "reject", "fail", "cancel", "tool_fails", "plain"]),
        }
        for number in range(200)
    }

    async def tool(session_id, number, fails):
        async with insight.phase("toolcall", number=number):
            for _ in range(rng.randint(1, 3)):
                await asyncio.sleep(0)
            assert insight.current_session().session_id == session_id
            if fails:
                raise OSError

    async def rollout(session_id, plan):
        async with insight.session(task_id=f"task-{session_id}", session_id=session_id, step=int(session_id[1:])) as s:
            s.mark("enqueued")
            for _ in range(plan["turns"]):
                async with insight.phase("generate"):
                    await asyncio.sleep(0)
                s.count("turns")
            fails = plan["end"] == "tool_fails" and plan["tools"] > 0
            results = await asyncio.gather(
                *(tool(session_id, number, fails and number == 0) for number in range(plan["tools"])),
                return_exceptions=True,
            )
            assert sum(isinstance(result, OSError) for result in results) == fails
            if plan["end"] == "fail":
                raise ArithmeticError
            if plan["end"] == "cancel":
                async with insight.phase("reward"):
                    await asyncio.Event().wait()
            if plan["end"] in ("accept", "reject"):
                s.finalize(f"{plan['end']}ed", reward=float(plan["turns"]))

    async def main():
        tasks = {i: asyncio.create_task(rollout(i, plan)) for i, plan in plans.items()}
        waiting = {tasks[i] for i, plan in plans.items() if plan["end"] == "cancel"}
        await asyncio.wait(set(tasks.values()) - waiting)
        for _ in range(100):
            await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*tasks.values(), return_exceptions=True)

    asyncio.run(main())
    found = records(insight_capture)
    status = {"accept": "accepted", "reject": "rejected", "fail": "failed", "cancel": "cancelled"}
    assert found.keys() == plans.keys()
    for session_id, plan in plans.items():
        record = found[session_id]
        assert record["status"] == status.get(plan["end"], "accepted")
        assert record["task_id"] == f"task-{session_id}"
        assert record["step"] == int(session_id[1:])
        assert record["counters"] == {"turns": plan["turns"]}
        phases = record["phases"]
        assert [phase["outcome"] for phase in phases["generate"]] == ["ok"] * plan["turns"]
        tools = sorted(phases.get("toolcall", []), key=lambda phase: phase["payload"]["number"])
        expected = ["ok"] * plan["tools"]
        if plan["end"] == "tool_fails" and expected:
            expected[0] = "error"
        assert [phase["outcome"] for phase in tools] == expected
        assert [phase["outcome"] for phase in phases.get("reward", [])] == (
            ["cancelled"] if plan["end"] == "cancel" else []
        )
        assert record.get("reward") == (float(plan["turns"]) if plan["end"] in ("accept", "reject") else None)
        assert all("end_ts" in phase for same in phases.values() for phase in same)
    assert insight_capture.losses == {}


def test_a_phase_object_may_be_used_again(insight_capture, only_record):
    generate = insight.phase("generate")
    with insight.session(session_id=0):
        for _ in range(2):
            with generate:
                insight_capture.clock.advance(1)
    assert only_record(insight_capture)["generate_s"] == 2.0
    assert len(only_record(insight_capture)["phases"]["generate"]) == 2
