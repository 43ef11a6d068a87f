from __future__ import annotations

from types import SimpleNamespace

import pytest

import rl_insight as insight
from rl_insight.agent_loop import agent_loop_session

LABELS = {"experiment": "grpo", "sample": "3", "session": "1"}


def test_it_is_public_under_both_names():
    assert insight.agent_loop_session is agent_loop_session


def test_identity_lane_gauges_and_one_span(insight_capture):
    session = agent_loop_session(
        project="math", experiment_name="grpo", sample=3, session=1, traj=2, uid="a17", global_steps=7, session_id="s9"
    )
    identity = session.identity
    assert (identity.project, identity.uid, identity.global_steps, identity.session_id) == ("math", "a17", 7, "s9")
    assert identity.lane_id == "experiment=grpo/sample=3/session=1/traj=2"
    session.finish(
        trajectories=[{"chain_id": 3, "reward_score": 0.5, "num_turns": 4}, SimpleNamespace(reward_score=1.0)],
        status="completed",
        runner_name="react",
        reward_source="rule",
        finished=True,
    )
    for name in ("run", "sample", "session", "traj"):
        assert insight_capture.value(f"agent_loop_{name}_info") == 1.0
    assert insight_capture.value("agent_loop_session_info", uid="a17", global_steps="7", **LABELS) == 1.0
    first = insight_capture.value("agent_loop_first_turn_unixtime", traj="2", **LABELS)
    assert {
        traj for traj in ("1", "2") if insight_capture.value("agent_loop_last_turn_unixtime", traj=traj) >= first
    } == {
        "1",
        "2",
    }
    (span,) = insight_capture.spans
    assert (span.name, span.lane, span.session_id, span.step) == ("agent_session", identity.lane_id, "s9", 7)
    assert span.attributes["trajectories"] == [
        {"traj": 2, "reward_score": 0.5, "num_turns": 4},
        {"traj": 1, "reward_score": 1.0},
    ]
    assert (span.attributes["status"], span.attributes["runner_name"]) == ("completed", "react")
    assert (span.attributes["reward_source"], span.attributes["finished"], span.status) == ("rule", True, "ok")


@pytest.mark.parametrize(("status", "outcome"), [("failed", "error"), ("Cancelled", "cancelled"), ("done", "ok")])
def test_the_status_decides_the_spans_outcome(insight_capture, status, outcome):
    agent_loop_session(experiment_name="e", sample=0, session=0).finish(trajectories=[], status=status)
    assert insight_capture.span("agent_session").status == outcome


def test_a_session_that_hangs_is_visible_as_open(insight_capture):
    session = agent_loop_session(experiment_name="e", sample=0, session=0)
    insight_capture.clock.advance(60)
    assert insight_capture.span("agent_session").status == "open"
    session.finish(trajectories=[], status="ok")
    session.finish(trajectories=[], status="failed")
    assert insight_capture.span("agent_session").status == "ok"


@pytest.mark.parametrize("trajectories", [None, 3, [None], [object()], [{"chain_id": "x"}]])
def test_odd_trajectories_never_raise(insight_capture, trajectories):
    agent_loop_session(experiment_name="e", sample=0, session=0).finish(trajectories=trajectories, status="ok")
    assert insight_capture.span("agent_session").status == "ok"


def test_nothing_is_recorded_while_disabled():
    agent_loop_session(experiment_name="e", sample=0, session=0).finish(trajectories=[], status="ok")
