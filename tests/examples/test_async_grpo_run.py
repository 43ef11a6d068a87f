"""The example as users start it: real processes, real files."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from examples.async_grpo import destination
from examples.async_grpo.launcher import parse
from examples.async_grpo.settings import Settings
from examples.async_grpo.summary import summarize_files
from rl_insight.config.paths import find_local_server
from rl_insight.schema.records import (
    EventRecord,
    HistogramRecord,
    LogRecord,
    LossRecord,
    SampleRecord,
    SessionSnapshot,
    SpanRecord,
)

STEPS = 3
TRAINER_STATES = {"wait_for_samples", "compute_advantages", "update", "sync_weights"}
ROLLOUT_STATES = {"generate", "toolcall", "reward", "wait_weights"}


@pytest.fixture(scope="module")
def finished(start_demo):
    demo = start_demo("--steps", str(STEPS), "--exit", "--speed", "20", "--errors")
    assert demo.process.wait(120) == 0, demo.output
    return demo


@pytest.fixture(scope="module")
def recording(finished):
    return finished.recording()


def test_every_process_takes_part_in_one_run_and_ends_in_order(finished, recording):
    assert sorted(recording.roles.values()) == [
        ("rollout", 0),
        ("rollout", 1),
        ("rollout", 2),
        ("tool", 0),
        ("trainer", 0),
    ]
    assert recording.finals == set(recording.roles)
    assert recording.of(LossRecord) == []


def test_no_process_is_left(finished, wait_until):
    wait_until(lambda: not finished.descendants())


def test_trainer_lane_shows_its_states_in_every_step(recording):
    states = [span for span in recording.spans().values() if span.lane == "trainer" and span.name in TRAINER_STATES]
    assert {span.segment for span in states} == {"state_interval"}
    for step in range(1, STEPS + 1):
        assert {span.name for span in states if span.step == step} == TRAINER_STATES


def test_every_slot_is_a_lane_with_the_states_of_its_samples(recording):
    spans = [span for span in recording.spans().values() if recording.role(span) == "rollout"]
    assert {span.lane for span in spans} == {f"rollout_{rank}/slot_{slot}" for rank in range(3) for slot in range(6)}
    assert {span.name for span in spans} >= ROLLOUT_STATES | {"session"}


def test_phases_of_a_sample_are_children_of_its_session(recording):
    spans = recording.spans()
    for span in recording.spans("generate").values():
        assert spans[span.parent_id].name == "session"
        assert spans[span.parent_id].lane == span.lane


def test_tool_server_continues_the_trace_of_the_rollout(recording):
    spans = recording.spans()
    served = recording.spans("tool.evaluate").values()
    assert served
    for span in served:
        caller = spans[span.parent_id]
        assert caller.name == "toolcall"
        assert (recording.role(span), recording.role(caller)) == ("tool", "rollout")
        assert span.trace_id == caller.trace_id
        assert span.step == caller.step


def test_tool_errors_are_counted_by_type_and_fail_their_spans(recording):
    failed = [span for span in recording.spans("toolcall").values() if span.status == "error"]
    assert failed
    assert {span.error for span in failed} == {"examples.async_grpo.agent.ToolError"}
    counted = [sample for sample in recording.of(SampleRecord) if sample.metric == "tool_errors"]
    assert {sample.labels["type"] for sample in counted} == {"http_503"}


def test_metrics_of_every_step_are_there(recording):
    steps = {}
    for sample in recording.of(SampleRecord):
        if recording.role(sample) == "trainer":
            steps.setdefault(sample.metric, set()).add(sample.step)
    expected = {
        "reward_mean", "reward_std", "response_length_mean", "response_length_max", "staleness_mean", "staleness_max",
        "queue_depth", "loss", "kl", "entropy", "clip_fraction", "grad_norm", "step_time_seconds",
        "throughput_tokens_per_second", "timing_seconds",
    }  # fmt: skip
    for name in expected:
        assert steps[name] == set(range(1, STEPS + 1)), name
    assert {"reward_by_task", "tool_call_rate", "weight_version"} <= set(steps)
    histograms = {record.metric for record in recording.of(HistogramRecord)}
    assert {"tool_latency_seconds", "sample_latency_seconds", "response_length"} <= histograms


def test_sessions_have_the_step_that_trains_on_them(recording):
    """They are as stale as the trainer measured; samples that were never trained on keep the step of their weights."""
    measured = {one.step: one.value for one in recording.of(SampleRecord) if one.metric == "staleness_mean"}
    latest = {one.session_id: one.record for one in recording.of(SessionSnapshot)}
    behind = dict.fromkeys(measured, 0)
    for record in latest.values():
        if record.get("step") in behind:
            behind[record["step"]] += record["step"] - 1 - int(record["model_version"])
    samples = Settings("run").groups_per_step * Settings("run").group_size
    assert behind == {step: round(mean * samples) for step, mean in measured.items()}
    assert sum(behind.values()) > 0


def test_weight_versions_are_published_and_received(recording):
    events = recording.of(EventRecord)
    published = [event.attributes["version"] for event in events if event.name == "weights_published"]
    received = {event.attributes["version"] for event in events if event.name == "weights_received"}
    assert published == list(range(STEPS + 1))
    assert received <= set(published)
    assert 0 in received


def test_logs_belong_to_the_span_in_which_they_were_said(recording):
    overloaded = [log for log in recording.of(LogRecord) if log.message == "calculator is overloaded"]
    assert overloaded
    assert {recording.spans()[log.span_id].name for log in overloaded} == {"tool.evaluate"}


def test_summary_agrees_with_what_was_recorded(finished, recording):
    summary = summarize_files(finished.directory)
    assert set(summary.rewards) == set(range(1, STEPS + 1))
    assert summary.processes == {"rollout": 3, "tool": 1, "trainer": 1}
    assert summary.spans["train_step"].count == STEPS
    assert summary.tool_errors["http_503"] == summary.spans["toolcall"].errors
    assert summary.unfinished == summary.lost == 0
    assert summary.text() in finished.output


def test_ctrl_c_ends_everything_even_while_a_tool_call_hangs(start_demo, wait_until):
    demo = start_demo("--speed", "20", "--hang")

    def hanging_call():
        spans = demo.recording().spans("toolcall").values() if demo.directory.exists() else ()
        return [span for span in spans if span.duration_ns is None]

    wait_until(lambda: hanging_call() or demo.process.poll() is not None)
    demo.press_ctrl_c()
    assert demo.process.wait(60) == 130, demo.output
    recording = demo.recording()
    assert recording.finals == set(recording.roles)
    assert len(recording.roles) == 5
    assert not [span for span in recording.spans().values() if span.duration_ns is None]
    assert any(span.status == "cancelled" for span in recording.of(SpanRecord))
    assert "Traceback" not in demo.output
    wait_until(lambda: not demo.descendants())


@pytest.mark.parametrize("server", [False, True])
def test_children_do_not_outlive_a_killed_launcher(start_demo, wait_until, server):
    demo = start_demo("--speed", "20", server=server)
    wait_until(lambda: "step    1 " in demo.output or demo.process.poll() is not None)
    assert len(demo.descendants()) >= 6 + server
    demo.process.send_signal(signal.SIGKILL)
    demo.process.wait(30)
    wait_until(lambda: not demo.descendants())


def test_a_dead_worker_ends_the_run_with_a_clear_message(start_demo, wait_until):
    demo = start_demo("--speed", "20")
    pid = wait_until(lambda: demo.directory.exists() and demo.recording().pids.get(("rollout", 1)))
    os.kill(pid, signal.SIGKILL)
    assert demo.process.wait(60) == 1
    assert "error: rollout_1 ended with exit code -9" in demo.output
    wait_until(lambda: not demo.descendants())


def test_own_server_is_asked_for_the_summary_and_stopped(start_demo, wait_until):
    demo = start_demo("--steps", "2", "--exit", "--speed", "20", server=True)
    assert demo.process.wait(120) == 0, demo.output
    assert "Live page: http://127.0.0.1:" in demo.output
    assert "Processes   3 rollout, 1 tool, 1 trainer\nSteps       2," in demo.output
    assert "0 events lost, 0 spans never ended" in demo.output
    assert [file.stem for file in (demo.data_dir / "runs").glob("*.duckdb")] == [demo.run_id]
    wait_until(lambda: not demo.descendants())


def test_page_stays_after_the_last_step_until_ctrl_c(start_demo, wait_until):
    demo = start_demo("--steps", "1", "--speed", "20", server=True)
    wait_until(lambda: "Training is done" in demo.output or demo.process.poll() is not None)
    url = find_local_server(demo.data_dir).url
    assert f"The page is on {url} until" in demo.output
    with urllib.request.urlopen(f"{url}/readyz", timeout=10) as response:
        assert response.status == 200
    demo.press_ctrl_c()
    assert demo.process.wait(60) == 130
    assert "Steps       1," in demo.output
    wait_until(lambda: not demo.descendants())


def test_a_server_that_runs_already_is_used_and_left_running(start_demo, wait_until, tmp_path):
    command = [sys.executable, "-m", "rl_insight.cli", "server", "start", "--port", "0", "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            url = wait_until(lambda: find_local_server(tmp_path)).url
            demo = start_demo("--steps", "1", "--exit", "--speed", "20", server=True, data_dir=tmp_path)
            assert demo.process.wait(120) == 0, demo.output
            assert f"Live page: {url}\n" in demo.output
            api = f"{url}/api/v1/summary?run={demo.run_id}"
            with urllib.request.urlopen(api, timeout=10) as response:
                assert json.load(response)["processes"] == 5
        finally:
            server.terminate()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--exit"], "--exit needs --steps"),
        (["--steps", "0"], "1 or more"),
        (["--steps", "many"], "1 or more"),
        (["--workers", "-1"], "1 or more"),
        (["--speed", "0"], "above 0"),
        (["--speed", "nan"], "above 0"),
        (["--speed", "inf"], "above 0"),
        (["--straggler", "3"], "rank from 0 to 2"),
        (["--directory", "here"], "requires --no-server"),
        (["--server", "http://127.0.0.1:1", "--no-server"], "not allowed with"),
    ],
)
def test_bad_options_are_refused_with_a_reason(arguments, message, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(arguments, "demo")
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_another_free_port_is_used_when_the_usual_one_is_taken():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert destination.free_port(port) not in {0, port}


def test_a_server_that_does_not_start_is_reported(monkeypatch, tmp_path):
    unusable = tmp_path / "file"
    unusable.touch()
    monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(unusable))
    with pytest.raises(destination.DestinationError, match="did not start"):
        destination.start_server(multiprocessing.get_context("spawn"))


@pytest.mark.slow
def test_two_servers_started_at_once_are_told_apart(monkeypatch, tmp_path):
    context = multiprocessing.get_context("spawn")
    started = []
    # Both are told that the same port is free, as happens to two launchers in the same moment.
    port = destination.free_port(0)
    monkeypatch.setattr(destination, "free_port", lambda _preferred: port)
    try:
        for name in ("first", "second"):
            monkeypatch.setenv("RL_INSIGHT_DATA_DIR", str(tmp_path / name))
            started.append(destination.start_server(context))
        assert len({url for _, url in started}) == 2
    finally:
        for process, _ in started:
            process.terminate()
            process.join(20)
