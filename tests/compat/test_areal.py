from __future__ import annotations

import asyncio
import dataclasses
import getpass
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import rl_insight as insight
from rl_insight.compat import areal
from rl_insight.testing import CaptureMonitor


def wait_until(predicate, timeout_s=20.0):
    deadline = time.monotonic() + timeout_s
    while not predicate():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.005)


@pytest.fixture(autouse=True)
def _reset():
    yield
    areal.reset()


@pytest.fixture
def config(tmp_path):
    return {
        "enabled": True,
        "experiment_name": "math",
        "trial_name": "trial0",
        "fileroot": str(tmp_path),
        "session_tracer": {"enabled": True, "flush_threshold": 256},
    }


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "logs" / getpass.getuser() / "math" / "trial0"


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.usefixtures("insight_capture")
class TestLife:
    def test_an_unset_tracer_raises(self):
        assert not areal.is_configured()
        for get in (areal.get_tracer, areal.get_session_tracer):
            with pytest.raises(RuntimeError, match="not configured"):
                get()

    def test_a_second_configure_raises_until_reset(self, config):
        areal.configure(config, rank=0)
        with pytest.raises(RuntimeError, match="already"):
            areal.configure(config, rank=0)
        areal.reset()
        areal.configure(config, rank=1)
        assert areal.get_tracer().rank == 1

    @pytest.mark.parametrize(
        ("rank", "error"), [(-1, ValueError), ("0", TypeError), (None, TypeError), (True, TypeError)]
    )
    def test_a_bad_rank_is_refused(self, config, rank, error):
        with pytest.raises(error, match="rank"):
            areal.configure(config, rank=rank)
        assert not areal.is_configured()

    @pytest.mark.parametrize(
        ("key", "value", "error"),
        [
            ("save_interval", 0, ValueError),
            ("save_interval", "1", TypeError),
            ("profile_steps", [-1], ValueError),
            ("session_tracer", {"enabled": True, "flush_threshold": 0}, ValueError),
            ("experiment_name", "../secrets", ValueError),
            ("trial_name", "..", ValueError),
        ],
    )
    def test_bad_values_are_refused(self, config, key, value, error):
        with pytest.raises(error, match=r"save_interval|profile_steps|flush_threshold|_name"):
            areal.configure({**config, key: value}, rank=0)

    def test_disabled_it_is_configured_and_does_nothing(self, tmp_path, insight_capture):
        areal.configure({"enabled": False, "fileroot": str(tmp_path)}, rank=0)
        with areal.trace_scope("x"), areal.trace_session_phase("generate"):
            areal.instant("y")
        assert areal.register_task() is None
        areal.save(step=1, force=True)
        assert areal.get_session_tracer() is None
        assert insight_capture.spans == []
        assert list(tmp_path.iterdir()) == []

    def test_without_configure_every_call_passes(self, insight_capture):
        with areal.trace_scope("x"), areal.trace_session_phase("generate"):
            areal.instant("y")
        areal.trace_session_event("mark_enqueued", task_id=1)
        areal.save(step=1)
        areal.reset()
        assert insight_capture.spans == []

    def test_dataclasses_omegaconf_and_objects_are_read(self, tmp_path):
        @dataclasses.dataclass
        class Sessions:
            enabled: bool = True
            flush_threshold: int = 5

        @dataclasses.dataclass
        class Config:
            enabled: bool = True
            experiment_name: str = "e"
            trial_name: str = "t"
            fileroot: str = str(tmp_path)
            save_interval: int = 3
            profile_steps: list[int] | None = None
            session_tracer: Sessions = dataclasses.field(default_factory=Sessions)

        for config in (Config(), OmegaConf.create(dataclasses.asdict(Config()))):
            read = areal.configure(config, rank=0).config
            assert (read.save_interval, read.flush_threshold, read.sessions_enabled) == (3, 5, True)
            areal.reset()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("compute", "compute"),
        ("COMMUNICATION", "comm"),
        ("i/o", "io"),
        ("synchronization", "sync"),
        ("scheduler", "scheduler"),
        ("instrumentation", "instr"),
        ("whatever", "misc"),
        (areal.Category.COMM, "comm"),
        (None, "misc"),
    ],
)
def test_categories_in_all_spellings(given, expected):
    assert areal.Category.of(given) == expected


def test_scopes_instants_and_decorators_become_trace_events(config, folder, insight_capture):
    areal.configure(config, rank=2, role="actor")

    @areal.trace_perf("update", category="compute")
    def update():
        insight_capture.clock.advance(0.25)

    async def exchange():
        async with areal.atrace_scope("exchange", category="communication", args={"bytes": 3}):
            insight_capture.clock.advance(0.5)

    with areal.trace_scope("step", args={"global_step": 4}):
        update()
        areal.instant("received", category=areal.Category.IO, args={"version": 1})
        asyncio.run(exchange())
    areal.save(force=True)
    events = lines(folder / "perf_tracer" / "actor" / "traces-r2.jsonl")
    names = [event for event in events if event["ph"] == "M"]
    assert [event["args"]["name"] for event in names] == ["actor 2", "main"]
    by_name = {event["name"]: event for event in events if event["ph"] != "M"}
    assert {event["pid"] for event in events} == {2}
    assert (by_name["update"]["cat"], by_name["update"]["dur"]) == ("compute", 250_000.0)
    assert (by_name["exchange"]["cat"], by_name["exchange"]["args"]) == ("comm", {"bytes": 3})
    assert (by_name["step"]["cat"], by_name["step"]["dur"]) == ("misc", 750_000.0)
    assert (by_name["received"]["ph"], by_name["received"]["args"]) == ("i", {"version": 1})


def test_the_life_of_a_task_becomes_a_session_record(config, folder, insight_capture):
    clock = insight_capture.clock
    areal.configure(config, rank=0)
    task_id = areal.register_task()
    clock.advance(0.5)
    areal.trace_session_event("mark_enqueued", task_id=task_id)
    clock.advance(0.25)
    areal.set_task_id(task_id)

    @areal.trace_session("reward")
    async def score():
        clock.advance(0.125)
        return 1.0

    @areal.session_context()
    async def episode():
        areal.trace_session_event("mark_execution_start")
        async with areal.atrace_session_phase("generate", start_payload={"prompt": 3}, end_payload={"tokens": 9}):
            clock.advance(2.0)
        await score()
        areal.trace_session_event("tool_start", tool="search")
        clock.advance(1.0)
        areal.trace_session_event("tool_end")
        areal.trace_session_event("mark_execution_end")
        return areal.get_session_id()

    session_id = asyncio.run(episode())
    assert areal.get_session_id() is None
    stats = {"accepted": 8, "enqueued": 192, "rejected": 0, "running": 56}
    areal.trace_session_event("mark_finalized", task_id=task_id, status="accepted", rollout_stats=stats)
    areal.save(force=True)
    path = folder / "session_tracer" / "sessions-r0.jsonl"
    assert lines(path) == []
    clock.advance(0.0625)
    areal.trace_session_event("mark_consumed", task_id=task_id)
    areal.save(force=True)
    (record,) = lines(path)
    expected = {
        "session_id": session_id,
        "task_id": task_id,
        "rank": 0,
        "status": "accepted",
        "rollout_stats": stats,
        "queue_wait_s": 0.5,
        "runner_wait_s": 0.25,
        "execution_s": 3.125,
        "post_wait_s": 0.0625,
        "total_s": 3.9375,
        "generate_s": 2.0,
        "reward_s": 0.125,
        "tool_s": 1.0,
    }
    assert {name: record.get(name) for name in expected} == expected
    assert list(record["phases"]) == ["execution", "generate", "reward", "tool"]
    assert record["phases"]["generate"][0]["payload"] == {"prompt": 3, "tokens": 9}
    assert record["phases"]["tool"][0]["payload"] == {"tool": "search"}
    assert len(areal.get_session_tracer()) == 0


def test_an_episode_that_fails_or_is_cancelled_fails_or_cancels_its_session(config, folder, insight_capture):
    areal.configure(config, rank=0)

    @areal.session_context()
    async def episode(error):
        async with areal.atrace_session_phase("generate"):
            raise error

    async def main():
        return await asyncio.gather(
            episode(ValueError("no answer")), episode(asyncio.CancelledError()), return_exceptions=True
        )

    errors = asyncio.run(main())
    assert [type(error) for error in errors] == [ValueError, asyncio.CancelledError]
    areal.save(force=True)
    records = lines(folder / "session_tracer" / "sessions-r0.jsonl")
    assert [(record["status"], record["phases"]["generate"][0]["outcome"]) for record in records] == [
        ("failed", "error"),
        ("cancelled", "cancelled"),
    ]


def test_a_second_session_of_the_task_inherits_its_queue_times(config, folder, insight_capture):
    areal.configure(config, rank=0)
    task_id = areal.register_task()
    insight_capture.clock.advance(1.0)
    areal.trace_session_event("mark_enqueued", task_id=task_id)
    ids = [areal.register_session(task_id) for _ in range(2)]
    areal.trace_session_event("mark_dropped", task_id=task_id, reason="stale")
    areal.save(force=True)
    records = lines(folder / "session_tracer" / "sessions-r0.jsonl")
    assert [record["session_id"] for record in records] == ids
    assert [(record["queue_wait_s"], record["status"], record["reason"]) for record in records] == [
        (1.0, "dropped", "stale")
    ] * 2


def test_unknown_events_are_kept_as_instants_of_the_session(config, insight_capture):
    areal.configure(config, rank=0)
    session_id = areal.register_session(areal.register_task())
    areal.trace_session_event("weights_swapped", session_id=session_id, version=3)
    (event,) = insight_capture.events
    assert (event.name, event.session_id, event.attributes) == ("weights_swapped", str(session_id), {"version": 3})


def test_set_session_id_moves_phases_to_that_session(config, folder, insight_capture):
    areal.configure(config, rank=0)
    session_id = areal.register_session(areal.register_task())

    async def worker():
        areal.set_session_id(session_id)
        with areal.trace_session_phase("toolcall"):
            insight_capture.clock.advance(1.0)

    asyncio.run(worker())
    areal.trace_session_event("mark_finalized", session_id=session_id, status="rejected")
    areal.save(force=True)
    (record,) = lines(folder / "session_tracer" / "sessions-r0.jsonl")
    assert (record["toolcall_s"], record["status"]) == (1.0, "rejected")


def test_ids_are_unique_in_the_run_not_only_per_rank(config, insight_capture):
    ids = set()
    for rank in range(3):
        areal.configure(config, rank=rank)
        ids |= {areal.register_session(areal.register_task()) for _ in range(50)}
        areal.reset()
    assert len(ids) == 150
    assert all(0 <= number < 2**53 for number in ids)


def test_at_the_threshold_sessions_are_written_without_a_save(config, folder, insight_capture):
    areal.configure({**config, "session_tracer": {"enabled": True, "flush_threshold": 3}}, rank=0)
    path = folder / "session_tracer" / "sessions-r0.jsonl"
    for expected in (0, 0, 3):
        session_id = areal.register_session(areal.register_task())
        areal.trace_session_event("mark_finalized", session_id=session_id, status="rejected")
        insight_capture.flush()
        assert len(lines(path)) == expected


def test_save_writes_at_every_interval_in_the_background(config, folder, insight_capture):
    areal.configure({**config, "save_interval": 2}, rank=0)
    path = folder / "perf_tracer" / "traces-r0.jsonl"
    with areal.trace_scope("first"):
        pass
    areal.save(step=0)
    assert not path.exists()
    areal.save(step=1)
    wait_until(lambda: any(event["name"] == "first" for event in lines(path)))


def test_reset_writes_what_is_unfinished(config, folder, insight_capture):
    areal.configure(config, rank=0)
    areal.register_session(areal.register_task())
    areal.reset()
    (record,) = lines(folder / "session_tracer" / "sessions-r0.jsonl")
    assert record["status"] == "pending"


def test_files_are_appended_to(config, folder, insight_capture):
    for _ in range(2):
        areal.configure(config, rank=0)
        with areal.trace_scope("step"):
            pass
        areal.reset()
    events = lines(folder / "perf_tracer" / "traces-r0.jsonl")
    assert [event["name"] for event in events if event["ph"] == "X"] == ["step", "step"]


def test_memory_of_finished_sessions_is_released(config, insight_capture):
    tracer = areal.configure(config, rank=0)
    for _ in range(100):
        task_id = areal.register_task()
        areal.trace_session_event("mark_enqueued", task_id=task_id)
        areal.register_session(task_id)
        areal.trace_session_event("mark_finalized", task_id=task_id, status="accepted")
        areal.trace_session_event("mark_consumed", task_id=task_id)
        abandoned = areal.register_task()
        areal.trace_session_event("mark_dropped", task_id=abandoned)
    areal.save(force=True)
    assert len(areal.get_session_tracer()) == 0
    assert len(tracer._files._book) == 0


def test_a_process_that_never_called_init_writes_its_files_at_exit(config, folder, tmp_path):
    program = """
import json, sys
from rl_insight.compat import areal
areal.configure(json.loads(sys.argv[1]), rank=1)
with areal.session_context():
    with areal.trace_session_phase("generate"):
        pass
with areal.trace_scope("step"):
    pass
"""
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path), "RL_INSIGHT_DATA_DIR": str(tmp_path / "none")}
    import os

    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(config)],
        env={**environment, "LOGNAME": os.environ.get("LOGNAME") or getpass.getuser()},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (record,) = lines(folder / "session_tracer" / "sessions-r1.jsonl")
    assert (record["rank"], list(record["phases"])) == (1, ["generate"])
    assert "step" in {event["name"] for event in lines(folder / "perf_tracer" / "traces-r1.jsonl")}


def test_what_a_server_gets_is_the_same_as_the_files_hold(config, folder, insight_capture):
    areal.configure(config, rank=0)
    with areal.session_context() as session_id, areal.trace_session_phase("generate"):
        pass
    areal.trace_session_event("mark_finalized", session_id=session_id, status="rejected", reason="short")
    (span,) = [span for span in insight_capture.spans if span.name == "generate"]
    assert (span.segment, span.session_id) == ("phase", str(session_id))
    assert isinstance(insight_capture, CaptureMonitor)
    assert insight.current_session() is None
