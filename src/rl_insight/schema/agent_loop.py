"""Agent-loop spans: the session that a span belongs to, and the session record from its span.

Agent runtimes describe a rollout with spans whose attribute `monitor.trace_source` is `session` (the entire rollout),
`task` (one attempt) or `gateway` (one turn), all with the identity made by `agent_loop_session`. The recorder and the
OTLP receiver both use this module to turn them into a session with its turns as phases.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from rl_insight.schema.json_values import whole_number
from rl_insight.schema.names import PHASE_SEGMENT, SESSION_SEGMENT
from rl_insight.schema.tables import seconds_of

TRACE_SOURCE: Final = "monitor.trace_source"
SESSION_SOURCE: Final = "session"
GATEWAY_SOURCE: Final = "gateway"
TASK_SOURCE: Final = "task"
METRIC_PREFIX: Final = "agent_loop_"
"""Metrics labeled with the experiment and step of a session; series of past steps are evicted for new ones."""
STEP_LABEL: Final = "global_steps"

_SEGMENTS = {SESSION_SOURCE: SESSION_SEGMENT, GATEWAY_SOURCE: PHASE_SEGMENT}
_STATUSES = {
    "success": "accepted",
    "failure": "failed",
    "failed": "failed",
    "error": "failed",
    "timeout": "failed",
    "empty": "rejected",
    "capacity_exhausted": "dropped",
    "cancelled": "cancelled",
    "canceled": "cancelled",
    "aborted": "cancelled",
}
"""Runtime status to session status; any other status counts as success."""


class AgentSpan(NamedTuple):
    """The session of an agent-loop span."""

    session_id: str
    segment: str | None
    """None: no special segment."""
    step: int | None


def lane_id(experiment_name: Any, sample: Any, session: Any, traj: Any) -> str:
    """Return the lane of a trajectory.

    >>> lane_id("grpo", 3, 0, 1)
    'experiment=grpo/sample=3/session=0/traj=1'
    """
    return f"experiment={experiment_name}/sample={sample}/session={session}/traj={traj}"


def read_agent_span(attributes: Mapping[str, Any]) -> AgentSpan | None:
    """Return the session of an agent-loop span; None for any other span.

    >>> read_agent_span({"monitor.trace_source": "gateway", "sample": "3", "session": "0", "global_steps": 7})
    AgentSpan(session_id='step=7/sample=3/session=0', segment='phase', step=7)
    """
    source = attributes.get(TRACE_SOURCE)
    if source not in (SESSION_SOURCE, GATEWAY_SOURCE, TASK_SOURCE):
        return None
    step = whole_number(attributes.get(STEP_LABEL))
    session_id = attributes.get("session_id")
    if not session_id:
        sample, session = attributes.get("sample", ""), attributes.get("session", "")
        session_id = f"step={'' if step is None else step}/sample={sample}/session={session}"
    return AgentSpan(str(session_id), _SEGMENTS.get(str(source)), step)


def session_status(word: Any) -> str:
    """Return the session status for a runtime's status.

    >>> session_status("success"), session_status("capacity_exhausted")
    ('accepted', 'dropped')
    """
    return _STATUSES.get(str(word).lower(), "accepted")


def session_row(attributes: Mapping[str, Any], start_ns: int, end_ns: int) -> dict[str, Any] | None:
    """Return the row of the session that a span describes (see `BatchBuilder.add_session`), with its record as a dict.

    None if the span does not describe a session.
    """
    if attributes.get(TRACE_SOURCE) != SESSION_SOURCE:
        return None
    found = read_agent_span(attributes)
    if found is None:
        return None
    word = str(attributes.get("status") or "success")
    status = session_status(word)
    task_id = str(attributes.get("uid") or attributes.get("sample") or "")
    turns, trajectories = (whole_number(attributes.get(name)) for name in ("num_turns", "num_trajectories"))
    counters = {"trajectories": trajectories, "turns": turns}
    record: dict[str, Any] = {
        "submit_ts": seconds_of(start_ns),
        "finalized_ts": seconds_of(end_ns),
        "step": found.step,
        "reason": None if status == "accepted" else word,
        "reward": attributes.get("reward"),
        "counters": {name: value for name, value in counters.items() if value},
    }
    return {
        "session_id": found.session_id,
        "task_id": task_id or None,
        "status": status,
        "time_ns": end_ns,
        "record": {name: value for name, value in record.items() if value not in (None, {})},
    }
