from __future__ import annotations

import asyncio
import dataclasses
import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import rl_insight as insight
from rl_insight.compat import areal
from rl_insight.compat.areal.names import category_name
from rl_insight.testing import START_NS, CaptureMonitor
from tests.waiting import wait_until


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
    def test_only_get_tracer_raises_without_a_configuration(self):
        assert not areal.is_configured()
        assert areal.get_session_tracer() is None
        with pytest.raises(RuntimeError, match="not configured"):
            areal.get_tracer()

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

    @pytest.mark.parametrize("given", [0, -3])
    def test_an_interval_or_threshold_below_one_means_one(self, config, given):
        sessions = {"enabled": True, "flush_threshold": given}
        read = areal.configure({**config, "save_interval": given, "session_tracer": sessions}, rank=0).config
        assert (read.save_interval, read.flush_threshold) == (1, 1)

    @pytest.mark.parametrize(
        ("choice", "expected"),
        [("", True), ("all", True), ("2", True), ("0,2", True), ("0-3", True), ("0,1", False), ("3-9", False)],
    )
    def test_a_variable_chooses_the_ranks_that_trace(self, config, monkeypatch, choice, expected):
        monkeypatch.setenv("AREAL_PERF_TRACER_RANKS", choice)
        assert areal.configure(config, rank=2).enabled is expected
        assert areal.get_session_tracer() is not None

    def test_a_choice_of_ranks_that_cannot_be_read_traces_all(self, config, monkeypatch, caplog):
        monkeypatch.setenv("AREAL_PERF_TRACER_RANKS", "some")
        assert areal.configure(config, rank=2).enabled
        assert "AREAL_PERF_TRACER_RANKS is 'some'" in caplog.text

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
        areal.trace_session_event("mark_finalized", task_id=1, status="accepted")
        assert (areal.register_task(), areal.register_task(7), areal.register_session(7)) == (None, None, None)
        areal.set_task_id(7)

        @areal.session_context()
        @areal.trace_session("generate")
        @areal.trace_perf("work", category=areal.Category.COMPUTE)
        def work():
            return areal.get_session_id()

        assert (work(), areal.get_task_id()) == (None, 7)
        areal.set_task_id(None)
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
        (" COMMUNICATION ", "comm"),
        ("synchronization", "sync"),
        ("scheduling", "scheduler"),
        ("Instrumentation", "instr"),
        ("My Kind", "My Kind"),
        (areal.Category.COMM, "comm"),
        (areal.PerfTraceCategory.IO, "io"),
        (None, "misc"),
        ("", "misc"),
        (3, "misc"),
    ],
)
def test_categories_in_all_spellings(given, expected):
    assert category_name(given) == expected


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
    assert [event["args"].get("name") for event in names] == ["[actor] Rank 2, Process", None, "MainThread"]
    by_name = {event["name"]: event for event in events if event["ph"] != "M"}
    assert {event["pid"] for event in events} == {os.getpid()}
    assert (by_name["update"]["cat"], by_name["update"]["dur"]) == ("compute", 250_000)
    mine = {"rank": 2, "role": "actor"}
    assert (by_name["exchange"]["cat"], by_name["exchange"]["args"]) == ("comm", {**mine, "bytes": 3, "step": 4})
    assert (by_name["step"]["cat"], by_name["step"]["dur"]) == ("misc", 750_000)
    assert (by_name["received"]["ph"], by_name["received"]["args"]) == ("i", {**mine, "version": 1, "step": 4})
    assert {span.name: span.step for span in insight_capture.spans} == {"step": 4, "update": 4, "exchange": 4}


def test_the_life_of_a_task_becomes_a_session_record(config, folder, insight_capture):
    clock = insight_capture.clock
    areal.configure(config, rank=0)
    assert areal.register_task(17) is None
    clock.advance(0.5)
    areal.set_task_id(17)

    @areal.trace_session("reward")
    async def score():
        clock.advance(0.125)
        return 1.0

    @areal.session_context()
    async def episode():
        async with areal.atrace_session_phase("generate", start_payload={"prompt": 3}, end_payload={"tokens": 9}):
            clock.advance(2.0)
        await score()
        areal.trace_session_event("mark_toolcall_start", session_id=areal.get_session_id(), tool="search")
        clock.advance(1.0)
        areal.trace_session_event("mark_toolcall_end", session_id=areal.get_session_id())
        areal.trace_session_event("increment_counter", session_id=areal.get_session_id(), name="turns", value=2)
        return areal.get_session_id()

    session_id = asyncio.run(episode())
    areal.trace_session_event("mark_finalized", task_id=17, status="accepted")
    areal.save(force=True)
    (record,) = lines(folder / "session_tracer" / "sessions-r0.jsonl")
    expected = {
        "session_id": session_id,
        "task_id": 17,
        "rank": 0,
        "status": "accepted",
        "total_s": 3.125,
        "generate_s": 2.0,
        "reward_s": 0.125,
        "toolcall_s": 1.0,
        "counters": {"turns": 2},
    }
    assert {name: record.get(name) for name in expected} == expected
    assert list(record["phases"]) == ["generate", "reward", "toolcall"]
    assert record["phases"]["generate"][0]["payload"] == {"prompt": 3, "tokens": 9}
    assert record["phases"]["toolcall"][0]["payload"] == {"tool": "search"}
    assert len(areal.get_session_tracer()) == 0


def test_the_executor_has_the_last_word_about_an_episode_that_failed(config, folder, insight_capture):
    areal.configure(config, rank=0)

    @areal.session_context()
    async def episode(error):
        async with areal.atrace_session_phase("generate"):
            raise error

    async def task(task_id, error):
        areal.register_task(task_id)
        areal.set_task_id(task_id)
        await episode(error)

    async def main():
        errors = (ValueError("no answer"), ValueError("no answer"), asyncio.CancelledError())
        return await asyncio.gather(*(task(*given) for given in enumerate(errors)), return_exceptions=True)

    asyncio.run(main())
    areal.trace_session_event("mark_finalized", task_id=0, status="failed", reason="workflow_exception")
    areal.save(force=True)
    records = {record["task_id"]: record for record in lines(folder / "session_tracer" / "sessions-r0.jsonl")}
    found = [(record["status"], record["reason"], record["error"]) for _, record in sorted(records.items())]
    assert found == [
        ("failed", "workflow_exception", "ValueError"),
        ("failed", "ValueError", "ValueError"),
        ("cancelled", "asyncio.exceptions.CancelledError", "asyncio.exceptions.CancelledError"),
    ]
    assert records[0]["phases"]["generate"][0]["outcome"] == "error"


def test_what_is_said_last_before_the_file_is_written_counts(config, folder, insight_capture):
    areal.configure(config, rank=0)
    session_id = areal.register_session(1)
    areal.trace_session_event("mark_finalized", session_id=session_id, status="rejected", reason="early")
    insight_capture.flush()
    areal.trace_session_event("mark_finalized", session_id=session_id, status="accepted")
    areal.save(step=0)
    areal.save(force=True)
    areal.trace_session_event("mark_finalized", session_id=session_id, status="failed")
    areal.save(force=True)
    assert [record["status"] for record in lines(folder / "session_tracer" / "sessions-r0.jsonl")] == ["accepted"]


def test_a_session_that_was_written_unfinished_is_not_written_again(config, folder, insight_capture):
    areal.configure(config, rank=0)
    session_id = areal.register_session(1)
    areal.save(force=True)
    areal.trace_session_event("mark_finalized", session_id=session_id, status="rejected")
    areal.save(force=True)
    assert [record["status"] for record in lines(folder / "session_tracer" / "sessions-r0.jsonl")] == ["pending"]
    (session,) = insight_capture.sessions
    assert session["status"] == "rejected"
    assert len(areal.get_session_tracer()) == 0


def test_an_end_without_a_start_is_a_phase_that_took_no_time(config, folder, insight_capture):
    areal.configure(config, rank=0)
    session_id = areal.register_session(1)
    areal.trace_session_event("mark_reward_end", session_id=session_id)
    areal.save(force=True)
    (record,) = lines(folder / "session_tracer" / "sessions-r0.jsonl")
    (phase,) = record["phases"]["reward"]
    assert phase["start_ts"] == phase["end_ts"]


class TestReleases:
    """The call signatures of AReaL's releases since v0.4.1."""

    def test_v0_4_1_asks_for_task_ids_and_names_the_session_of_a_phase(self, config, folder, insight_capture):
        areal.configure(config, rank=0)
        task_id = areal.register_task()
        assert isinstance(task_id, int)
        session_id = areal.register_session(task_id)
        with areal.trace_session_phase(session_id, "generate", start_payload={"turn": 1}):
            insight_capture.clock.advance(1.0)

        async def tool():
            async with areal.atrace_session_phase(session_id, "toolcall"):
                insight_capture.clock.advance(0.5)

        asyncio.run(tool())
        with areal.trace_session_phase(None, "reward"):
            pass
        areal.trace_session_event("mark_finalized", task_id=task_id, status="accepted")
        areal.save(force=True)
        (record,) = lines(folder / "session_tracer" / "sessions-r0.jsonl")
        assert (record["task_id"], record["generate_s"], record["toolcall_s"]) == (task_id, 1.0, 0.5)
        assert "reward" not in record["phases"]

    def test_before_tasks_the_session_came_first(self, config, folder, insight_capture):
        areal.configure(config, rank=0)
        session_id = areal.register_session(None)
        for method in ("mark_enqueued", "mark_execution_start", "mark_execution_end", "mark_consumed"):
            areal.trace_session_event(session_id, method)
            insight_capture.clock.advance(1.0)
        areal.trace_session_event(None, "mark_finalized", status="rejected")
        areal.trace_session_event(session_id, "mark_finalized", status="rejected", rejection_reason="short")
        areal.save(force=True)
        (record,) = lines(folder / "session_tracer" / "sessions-r0.jsonl")
        assert (record["status"], record["reason"], record["execution_s"]) == ("rejected", "short", 1.0)
        assert record["wait_return_ts"] - record["enqueue_ts"] == 3.0

    def test_from_v0_5_2_on_the_executor_gives_the_id(self, config, insight_capture):
        areal.configure(config, rank=0, role="rollout")
        assert areal.register_task(100) is None
        first, second = areal.register_session(100), areal.register_session(100)
        assert areal.get_session_tracer().get_session_ids(100) == [first, second]

    def test_every_name_is_there(self):
        for name in areal.__all__:
            getattr(areal, name)


def test_the_session_tracer_records_events_and_counters(config, folder, insight_capture):
    areal.configure(config, rank=0)
    tracer = areal.get_session_tracer()
    tracer.register_task(5)
    session_id = tracer.register_session(5)
    tracer.record_event(session_id, areal.SessionTraceEvent.GENERATE_START)
    insight_capture.clock.advance(1.0)
    tracer.record_event(session_id, areal.SessionTraceEvent.GENERATE_END)
    tracer.increment_counter(session_id, "tools", 2)
    tracer.record_event(session_id, areal.SessionTraceEvent.FINALIZED, status="accepted")
    tracer.record_event(-1, areal.SessionTraceEvent.FINALIZED, status="accepted")
    tracer.flush()
    path = folder / "session_tracer" / "sessions-r0.jsonl"
    assert lines(path) == []
    tracer.flush(force=True)
    (record,) = lines(path)
    assert (record["generate_s"], record["counters"]) == (1.0, {"tools": 2})
    assert tracer.get_session_ids(5) == []
    tracer.register_session(6)
    tracer.reset()
    assert (len(tracer), len(lines(path))) == (0, 2)


def test_sessions_of_other_libraries_are_not_in_its_file(config, folder, insight_capture):
    areal.configure(config, rank=0)
    loop = insight.agent_loop_session(experiment_name="grpo", sample=1, session=0)
    loop.finish(trajectories=[], status="error")
    with insight.session(session_id="12", task_id="t"):
        pass
    areal.register_task(7)
    own = areal.register_session(7)
    areal.trace_session_event("mark_finalized", task_id=7, status="accepted")
    areal.save(force=True)
    assert [record["session_id"] for record in lines(folder / "session_tracer" / "sessions-r0.jsonl")] == [own]
    assert len(areal.get_session_tracer()) == 0


def test_sessions_need_only_their_own_switch(config, folder, insight_capture):
    tracer = areal.configure({**config, "enabled": False}, rank=0)
    assert (tracer.enabled, tracer.session_tracer is None) == (False, False)
    areal.trace_session_event("mark_finalized", session_id=areal.register_session(1), status="accepted")
    with areal.trace_scope("not recorded"):
        areal.instant("neither")
    areal.save(force=True)
    assert len(lines(folder / "session_tracer" / "sessions-r0.jsonl")) == 1
    assert not (folder / "perf_tracer").exists()
    tracer.set_enabled(True)
    with tracer.trace_scope("recorded"):
        pass
    tracer.save()
    names = [event["name"] for event in lines(folder / "perf_tracer" / "traces-r0.jsonl") if event["ph"] == "X"]
    assert names == ["recorded"]


def test_a_profile_is_merged_where_its_scope_began(config, folder, insight_capture):
    tracer = areal.configure(config, rank=0)
    base_ns = insight_capture.clock.monotonic_ns()
    profile = {"traceEvents": [{"ph": "X", "name": "gemm", "pid": 0, "tid": 7, "ts": 9000.0, "dur": 20.0}]}
    tracer.merge_profiler_trace(profile, base_ns, args={"global_step": 3})
    areal.save()
    (event,) = [event for event in lines(folder / "perf_tracer" / "traces-r0.jsonl") if event["ph"] == "X"]
    assert (event["ts"], event["tid"], event["args"]) == (START_NS // 1000, -1, {"rank": 0, "step": 3})


def test_unknown_events_are_kept_as_instants_of_the_session(config, insight_capture):
    areal.configure(config, rank=0)
    session_id = areal.register_session(areal.register_task())
    areal.trace_session_event("mark_weights_swapped", session_id=session_id, version=3)
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


def test_a_disk_that_refuses_raises_nothing_and_the_lines_come_later(config, folder, insight_capture, caplog):
    blocked = folder.parents[1]
    blocked.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file in the place of a folder")
    areal.configure(config, rank=0)
    with areal.trace_scope("early"):
        pass
    areal.register_task(7)
    areal.register_session(7)
    areal.trace_session_event("mark_finalized", task_id=7, status="accepted")
    areal.save(force=True)
    areal.save(force=True)
    assert len([record for record in caplog.records if "cannot write" in record.message]) == 2, "once per file"
    blocked.unlink()
    areal.save(force=True)
    traces = lines(folder / "perf_tracer" / "traces-r0.jsonl")
    assert [event["name"] for event in traces if event["ph"] == "X"] == ["early"]
    assert len(lines(folder / "session_tracer" / "sessions-r0.jsonl")) == 1
    assert insight_capture.losses == {}


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
    for task_id in range(300):
        areal.register_task(task_id)
        areal.register_session(task_id)
        areal.trace_session_event("mark_finalized", task_id=task_id, status="accepted")
    insight_capture.flush()
    assert len(areal.get_session_tracer()) == 0
    assert len(tracer._files._book) == 0


def test_a_process_that_never_called_init_writes_its_files_at_exit(config, folder, tmp_path):
    program = """
import json, sys
from rl_insight.compat import areal
from rl_insight.compat.areal.names import category_name
areal.configure(json.loads(sys.argv[1]), rank=1)
areal.set_session_id(areal.register_session(3))
with areal.trace_session_phase("generate"):
    pass
with areal.trace_scope("step"):
    pass
"""
    environment = {"PATH": "/usr/bin", "HOME": str(tmp_path), "RL_INSIGHT_DATA_DIR": str(tmp_path / "none")}
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
    areal.set_task_id(3)

    @areal.session_context()
    def episode():
        with areal.trace_session_phase("generate"):
            return areal.get_session_id()

    session_id = episode()
    areal.set_task_id(None)
    areal.trace_session_event("mark_finalized", session_id=session_id, status="rejected", reason="short")
    (span,) = [span for span in insight_capture.spans if span.name == "generate"]
    assert (span.segment, span.session_id) == ("phase", str(session_id))
    assert isinstance(insight_capture, CaptureMonitor)
    assert insight.current_session() is None
