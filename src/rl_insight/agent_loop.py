"""Agent loops: one call at the start of a rollout session, and one at its end.

>>> session = agent_loop_session(experiment_name="grpo", sample=3, session=0, global_steps=7)
>>> session.identity["state_lane_id"]
'experiment=grpo/sample=3/session=0/traj=0'
>>> session.finish(trajectories=[], status="success")

Pass the identity to other processes, in task arguments or HTTP metadata. Their spans belong to the session if they
include it:

>>> from rl_insight import trace_span
>>> turn = {**session.identity, "monitor.trace_source": "gateway", "turn": 0, "completion_tokens": 512}
>>> _ = trace_span(name="gateway_generation", start_time_ns=1_000, end_time_ns=2_000, attributes=turn)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from rl_insight.integrations.samples import field_of
from rl_insight.monitor import default_monitor
from rl_insight.recorder.losses import safe_text
from rl_insight.schema.agent_loop import SESSION_SOURCE, TRACE_SOURCE, lane_id, session_status
from rl_insight.sessions.model import BAD_OUTCOMES

__all__ = ["AgentLoopSession", "agent_loop_lane_id", "agent_loop_session"]

ValueT = TypeVar("ValueT")

agent_loop_lane_id = lane_id


@dataclass(frozen=True)
class AgentLoopSession:
    """An open rollout session; it can be pickled."""

    identity: dict[str, Any]
    """Strings, empty if not given, and `global_steps` as given."""
    start_ns: int

    def finish(
        self,
        *,
        trajectories: Iterable[Any],
        status: str,
        runner_name: str | None = None,
        reward_source: str | None = None,
        finished: bool | None = None,
    ) -> None:
        """Record the session: its span, and gauges that list it and its trajectories.

        Args:
            trajectories: Objects or mappings with `chain_id`, `reward_score` and `num_turns`, all optional.
            status: `success`, `failure`, `empty`, `capacity_exhausted` or `error`.
            runner_name: The runner of the loop.
            reward_source: Where the reward came from.
            finished: Whether the loop ended on its own.
        """
        listed: list[Any] = _converted(list, trajectories, [])
        described = [_described(index, one) for index, one in enumerate(listed)]
        end_ns = time.time_ns()
        self._show(described, end_ns)
        attributes = {
            **self.identity,
            TRACE_SOURCE: SESSION_SOURCE,
            "status": safe_text(status),
            "runner_name": runner_name or "",
            "reward_source": reward_source or "",
            "num_trajectories": len(described),
            "finished": "" if finished is None else finished,
        }
        if described:
            attributes["reward"] = sum(one.reward for one in described) / len(described)
            attributes["num_turns"] = sum(one.turns for one in described)
        span = default_monitor.trace_span(
            name="agent_session", start_time_ns=self.start_ns, end_time_ns=end_ns, attributes=attributes
        )
        bad_outcome = BAD_OUTCOMES.get(session_status(status))
        if bad_outcome is not None:
            span.set_status(bad_outcome)

    def _show(self, trajectories: list[_Trajectory], end_ns: int) -> None:
        gauge = default_monitor.metric_gauge
        identity = self.identity
        run = {"experiment_name": identity["experiment_name"], "global_steps": identity["global_steps"]}
        sample = {**run, "sample": identity["sample"]}
        session = {**sample, "session": identity["session"]}
        key = f"sample={identity['sample']}/session={identity['session']}"
        gauge("agent_loop_run_info", 1.0, title=f"Experiment · {identity['experiment_name']}", **run)
        gauge("agent_loop_sample_info", 1.0, title=f"Sample {identity['sample']}", **sample)
        gauge("agent_loop_session_info", 1.0, sess_key=key, title=f"Session {identity['session']}", **session)
        for one in trajectories:
            title = f"Trajectory #{one.traj} · reward {one.reward:g} · {one.turns} turns"
            gauge("agent_loop_traj_info", 1.0, traj=one.traj, leaf=f"{key}/traj={one.traj}", title=title, **session)
        gauge("agent_loop_first_turn_unixtime", self.start_ns / 1e9, **run)
        gauge("agent_loop_last_turn_unixtime", end_ns / 1e9, **run)


def agent_loop_session(
    *,
    project: Any = None,
    experiment_name: Any,
    sample: Any,
    session: Any,
    traj: Any = 0,
    uid: Any = None,
    global_steps: Any = None,
    session_id: Any = None,
) -> AgentLoopSession:
    """Start a rollout session of an agent loop; `finish` records it.

    >>> loop = agent_loop_session(experiment_name="grpo", sample=3, session=1, uid="a17")
    >>> loop.finish(trajectories=[], status="error", runner_name="react")

    Args:
        project: The project.
        experiment_name: The experiment.
        sample: The sample's number in the batch.
        session: The number of the sample's repetition.
        traj: The session's first trajectory.
        uid: The dataset item.
        global_steps: The training step.
        session_id: The session's id in the run; made from step, sample and session by default.
    """
    given = {"project": project, "experiment_name": experiment_name, "sample": sample, "session": session, "traj": traj}
    identity: dict[str, Any] = {name: _text(value) for name, value in given.items()}
    identity["state_lane_id"] = lane_id(*(identity[name] for name in ("experiment_name", "sample", "session", "traj")))
    identity["uid"] = _text(uid)
    identity["global_steps"] = "" if global_steps is None else global_steps
    identity["session_id"] = _text(session_id)
    return AgentLoopSession(identity, time.time_ns())


class _Trajectory(NamedTuple):
    traj: str
    reward: float
    turns: int


def _described(index: int, trajectory: Any) -> _Trajectory:
    """Read the fields of a trajectory; chains are numbered from 1."""
    traj = _converted(int, field_of(trajectory, "chain_id"), index + 1) - 1
    reward = _converted(float, field_of(trajectory, "reward_score"), 0.0)
    return _Trajectory(str(traj), reward, _converted(int, field_of(trajectory, "num_turns"), 0))


def _text(value: Any) -> str:
    return "" if value is None else safe_text(value)


def _converted(kind: Callable[[Any], ValueT], value: Any, default: ValueT) -> ValueT:
    try:
        return kind(value)
    except Exception:  # noqa: BLE001  # None, text, or a user's type that raises: training must continue
        return default
