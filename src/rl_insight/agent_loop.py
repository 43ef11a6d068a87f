"""Agent loops: one call where a rollout session begins, one where it ends.

>>> session = agent_loop_session(experiment_name="grpo", sample=3, session=0, global_steps=7)
>>> session.identity.lane_id
'experiment=grpo/sample=3/session=0/traj=0'
>>> session.finish(trajectories=[{"reward_score": 1.0, "num_turns": 4}], status="completed")
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rl_insight.monitor import default_monitor
from rl_insight.recorder.context import current_session, current_span, is_step, reset
from rl_insight.recorder.losses import safe_text

_OUTCOMES = {
    "failed": "error",
    "failure": "error",
    "error": "error",
    "timeout": "error",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "aborted": "cancelled",
}
"""What a status means for the span; any other one is a good end."""


@dataclass(frozen=True, slots=True)
class AgentLoopIdentity:
    """Which rollout a session is: of which experiment, sample and repetition."""

    experiment_name: str
    sample: int | str
    session: int | str
    traj: int = 0
    project: str | None = None
    uid: str | None = None
    global_steps: int | None = None
    session_id: str | None = None

    @property
    def lane_id(self) -> str:
        """The lane on which the timeline shows it."""
        return self.lane_of(self.traj)

    def lane_of(self, traj: int) -> str:
        """Return the lane of one of its trajectories."""
        return f"experiment={self.experiment_name}/sample={self.sample}/session={self.session}/traj={traj}"


class AgentLoopSession:
    """A rollout session that runs until `finish`."""

    def __init__(self, identity: AgentLoopIdentity) -> None:
        self.identity = identity
        self._finished = False
        self._first_unixtime = time.time()
        span = default_monitor.trace_span("agent_session", self._attributes(), lane=identity.lane_id)
        token = current_session.set(identity.session_id) if identity.session_id is not None else None
        span.begin(current_span.get())
        if token is not None:
            reset(current_session, token)
        self._span = span
        self._show_identity()

    def _attributes(self) -> dict[str, Any]:
        identity = self.identity
        attributes = {
            "experiment": identity.experiment_name,
            "project": identity.project,
            "sample": identity.sample,
            "session": identity.session,
            "uid": identity.uid,
            "step": identity.global_steps if is_step(identity.global_steps) else None,
        }
        return {name: value for name, value in attributes.items() if value is not None}

    def _show_identity(self) -> None:
        gauge = default_monitor.metric_gauge
        run = {"experiment": self.identity.experiment_name}
        sample = {**run, "sample": self.identity.sample}
        session = {**sample, "session": self.identity.session}
        step = self.identity.global_steps
        gauge("agent_loop_run_info", 1.0, "Experiments with agent loops.", **run)
        gauge("agent_loop_sample_info", 1.0, "Samples of an experiment.", **sample)
        details = {"uid": self.identity.uid or "", "global_steps": "" if step is None else step}
        gauge("agent_loop_session_info", 1.0, "Sessions of a sample.", **session, **details)
        self._show_trajectory(self.identity.traj)
        gauge(
            "agent_loop_first_turn_unixtime",
            self._first_unixtime,
            "When the first turn of a trajectory began.",
            **session,
            traj=self.identity.traj,
        )

    def _show_trajectory(self, traj: int) -> None:
        identity = self.identity
        default_monitor.metric_gauge(
            "agent_loop_traj_info",
            1.0,
            "Trajectories of a session.",
            experiment=identity.experiment_name,
            sample=identity.sample,
            session=identity.session,
            traj=traj,
            lane=identity.lane_of(traj),
        )

    def finish(
        self,
        *,
        trajectories: Iterable[Any],
        status: str,
        runner_name: str | None = None,
        reward_source: str | None = None,
        finished: bool | None = None,
    ) -> None:
        """End the session; a second time is ignored.

        Args:
            trajectories: Objects or mappings with `chain_id`, `reward_score` and `num_turns`, each of them optional.
            status: How it ended; `failed`, `error`, `timeout`, `cancelled` and `aborted` show as such.
            runner_name: What ran the loop.
            reward_source: What gave the reward.
            finished: Whether the loop came to an end of its own.
        """
        if self._finished:
            return
        self._finished = True
        described = [_describe(index, trajectory) for index, trajectory in enumerate(_listed(trajectories))]
        identity = self.identity
        now = time.time()
        for trajectory in described or [{"traj": identity.traj}]:
            traj = trajectory["traj"]
            if traj != identity.traj:
                self._show_trajectory(traj)
            default_monitor.metric_gauge(
                "agent_loop_last_turn_unixtime",
                now,
                "When the last turn of a trajectory ended.",
                experiment=identity.experiment_name,
                sample=identity.sample,
                session=identity.session,
                traj=traj,
            )
        outcome = {
            "status": safe_text(status),
            "runner_name": runner_name,
            "reward_source": reward_source,
            "finished": finished,
            "trajectories": described,
        }
        for name, value in outcome.items():
            if value is not None:
                self._span.set_attribute(name, value)
        bad_outcome = _OUTCOMES.get(safe_text(status).lower())
        if bad_outcome is not None:
            self._span.set_status(bad_outcome)
        self._span.finish()


def agent_loop_session(
    *,
    project: str | None = None,
    experiment_name: str,
    sample: int | str,
    session: int | str,
    traj: int = 0,
    uid: str | None = None,
    global_steps: int | None = None,
    session_id: str | None = None,
) -> AgentLoopSession:
    """Begin a rollout session of an agent loop: a span on a lane of its own, and gauges that name it.

    >>> loop = agent_loop_session(experiment_name="grpo", sample=3, session=1, uid="a17")
    >>> loop.finish(trajectories=[], status="failed", runner_name="react")

    Args:
        project: The project.
        experiment_name: The experiment.
        sample: The sample's number in the batch.
        session: The repetition of the sample.
        traj: The trajectory that the session begins with.
        uid: The dataset item.
        global_steps: The training step.
        session_id: The id of a session of `rl_insight.session` that this belongs to.
    """
    identity = AgentLoopIdentity(
        experiment_name=experiment_name,
        sample=sample,
        session=session,
        traj=traj,
        project=project,
        uid=uid,
        global_steps=global_steps,
        session_id=None if session_id is None else safe_text(session_id),
    )
    return AgentLoopSession(identity)


def _listed(trajectories: Any) -> list[Any]:
    try:
        return list(trajectories)
    except Exception:  # noqa: BLE001  # None, or what raises when it is iterated: no reason to stop training
        return []


def _describe(index: int, trajectory: Any) -> dict[str, Any]:
    chain_id = _field(trajectory, "chain_id")
    traj = chain_id - 1 if is_step(chain_id) else index
    described = {
        "traj": traj,
        "reward_score": _field(trajectory, "reward_score"),
        "num_turns": _field(trajectory, "num_turns"),
    }
    return {name: value for name, value in described.items() if value is not None}


def _field(trajectory: Any, name: str) -> Any:
    try:
        return trajectory.get(name) if isinstance(trajectory, Mapping) else getattr(trajectory, name, None)
    except Exception:  # noqa: BLE001  # a property of the user's that raises
        return None
