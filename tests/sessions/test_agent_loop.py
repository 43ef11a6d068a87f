from __future__ import annotations

import pickle
from types import SimpleNamespace

import pytest

import rl_insight as insight
from rl_insight.agent_loop import agent_loop_lane_id, agent_loop_session
from rl_insight.testing import capture

RUN = {"experiment_name": "grpo", "global_steps": "7"}


def test_it_is_public_under_both_names():
    assert insight.agent_loop_session is agent_loop_session


def test_the_identity_is_a_plain_dict_that_travels():
    session = agent_loop_session(experiment_name="grpo", sample=3, session=1, global_steps=7)
    assert session.identity == {
        "project": "",
        "experiment_name": "grpo",
        "sample": "3",
        "session": "1",
        "traj": "0",
        "state_lane_id": "experiment=grpo/sample=3/session=1/traj=0",
        "uid": "",
        "global_steps": 7,
        "session_id": "",
    }
    assert type(session.identity) is dict
    assert pickle.loads(pickle.dumps(session)).identity == {**session.identity}
    assert agent_loop_lane_id("grpo", 3, 1, 0) == session.identity["state_lane_id"]


def test_gauges_name_the_session_and_its_trajectories(insight_capture):
    session = agent_loop_session(experiment_name="grpo", sample=3, session=1, global_steps=7)
    session.finish(
        trajectories=[{"chain_id": 3, "reward_score": 0.5, "num_turns": 4}, SimpleNamespace(reward_score=1.0)],
        status="success",
    )
    labels = [(record.metric, record.labels) for record in insight_capture.metrics]
    sample, place = {**RUN, "sample": "3"}, {**RUN, "sample": "3", "session": "1"}
    key = "sample=3/session=1"
    assert labels == [
        ("agent_loop_run_info", {**RUN, "title": "Experiment · grpo"}),
        ("agent_loop_sample_info", {**sample, "title": "Sample 3"}),
        ("agent_loop_session_info", {**place, "sess_key": key, "title": "Session 1"}),
        (
            "agent_loop_traj_info",
            {**place, "traj": "2", "leaf": f"{key}/traj=2", "title": "Trajectory #2 · reward 0.5 · 4 turns"},
        ),
        (
            "agent_loop_traj_info",
            {**place, "traj": "1", "leaf": f"{key}/traj=1", "title": "Trajectory #1 · reward 1 · 0 turns"},
        ),
        ("agent_loop_first_turn_unixtime", RUN),
        ("agent_loop_last_turn_unixtime", RUN),
    ]
    assert insight_capture.value("agent_loop_first_turn_unixtime") == session.start_ns / 1e9
    assert insight_capture.losses == {}


def test_the_span_and_its_turns_become_a_session_with_phases(insight_capture):
    session = agent_loop_session(project="math", experiment_name="grpo", sample=3, session=1, uid="a17", global_steps=7)
    for turn in range(2):
        attributes = {
            **session.identity,
            "monitor.trace_source": "gateway",
            "state_lane_id": agent_loop_lane_id("grpo", 3, 1, turn),
            "turn": turn,
            "completion_tokens": 512,
            "content": "four",
            "tool_args": "{}",
        }
        start = session.start_ns + turn * 10**9
        insight.trace_span(
            name="gateway_generation", start_time_ns=start, end_time_ns=start + 10**9, attributes=attributes
        )
    session.finish(trajectories=[{"reward_score": 0.5, "num_turns": 2}], status="failure", runner_name="react")
    turns = [span for span in insight_capture.spans if span.name == "gateway_generation"]
    assert [(span.segment, span.lane, span.step) for span in turns] == [
        ("phase", f"experiment=grpo/sample=3/session=1/traj={turn}", 7) for turn in range(2)
    ]
    assert turns[0].attributes["completion_tokens"] == 512
    assert (turns[0].attributes["content"], turns[0].attributes["tool_args"]) == ("four", "{}")
    span = insight_capture.span("agent_session")
    assert (span.segment, span.status, span.step) == ("session", "error", 7)
    (record,) = insight_capture.sessions
    assert (record["task_id"], record["status"], record["reason"]) == ("a17", "failed", "failure")
    assert (record["step"], record["reward"]) == (7, 0.5)
    assert record["counters"] == {"trajectories": 1, "turns": 2}
    assert [phase["payload"]["turn"] for phase in record["phases"]["gateway_generation"]] == [0, 1]
    assert record["gateway_generation_s"] == 2.0


def test_the_same_sample_of_another_step_is_another_session(insight_capture):
    for step in (1, 2):
        agent_loop_session(experiment_name="e", sample=0, session=0, global_steps=step).finish(
            trajectories=[], status="success"
        )
    assert [record["step"] for record in insight_capture.sessions] == [1, 2]


@pytest.mark.parametrize(
    ("word", "status"),
    [("success", "accepted"), ("empty", "rejected"), ("capacity_exhausted", "dropped"), ("error", "failed")],
)
def test_a_runtimes_word_becomes_the_sessions_status(insight_capture, word, status):
    agent_loop_session(experiment_name="e", sample=0, session=0, session_id="s9").finish(trajectories=[], status=word)
    (record,) = insight_capture.sessions
    assert (record["session_id"], record["status"]) == ("s9", status)


@pytest.mark.parametrize(
    "trajectories", [None, 3, [None], [object()], [{"chain_id": "x"}], [{"num_turns": float("nan")}]]
)
def test_odd_trajectories_never_raise(insight_capture, trajectories):
    agent_loop_session(experiment_name="e", sample=0, session=0).finish(trajectories=trajectories, status="success")
    assert insight_capture.span("agent_session").status == "ok"


def test_nothing_is_recorded_while_disabled():
    session = agent_loop_session(experiment_name="e", sample=0, session=0)
    session.finish(trajectories=[], status="success")
    assert session.identity["sample"] == "0"


def test_gauges_of_the_current_step_are_never_merged():
    with capture({"recorder": {"max_series_per_metric": 3}}) as captured:
        for step in (1, 2):
            for sample in range(10):
                agent_loop_session(experiment_name="e", sample=sample, session=0, global_steps=step).finish(
                    trajectories=[], status="success"
                )
        captured.flush()
        found = [record.labels for record in captured.metrics if record.metric == "agent_loop_sample_info"]
        current = {labels["sample"] for labels in found if labels["global_steps"] == "2"}
        assert current == {str(sample) for sample in range(10)}
        assert "__overflow__" not in str(found)
        table = captured._pipeline.flusher._metrics
        assert len([key for key in table._cells if key[0] == "agent_loop_sample_info"]) <= 10


def test_a_label_that_repeats_the_runs_name_is_not_a_loss():
    with capture({"project": "math", "experiment_name": "grpo"}) as captured:
        insight.metric_gauge("reward", 1.0, experiment_name="test", project="math")
        labels = captured.metric("reward").labels
        assert labels == {}
        assert captured.losses == {"labels/reserved": 1}
