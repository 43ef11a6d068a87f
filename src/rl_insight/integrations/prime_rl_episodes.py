"""Read prime-rl's episodes: objects of a running orchestrator, or records of its trace files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_insight.integrations.samples import FinishedSample, SamplePhase, field_of, number
from rl_insight.schema.json_values import whole_number

_PHASES = {"agent": "generate", "generation": "generate", "scoring": "reward"}
"""prime-rl's phase names to the well-known ones; others are kept."""
_TIMED = ("boot", "setup", "generation", "agent", "finalize", "scoring")


def samples_of(
    episode: Any, now_s: float, step: int | None = None, kind: str | None = None
) -> Iterator[FinishedSample]:
    """Yield each trace of an episode; the episode itself if it failed and has no traces.

    Args:
        episode: A `verifiers` episode, or its record.
        now_s: The time to use for traces that have none.
        step: The step in which it arrived; read from the trace if None.
        kind: `train` or `eval`; read from the trace if None.
    """
    group = field_of(field_of(episode, "group"), "id")
    task = field_of(field_of(episode, "task"), "id") or field_of(episode, "example_id") or group
    errors = field_of(episode, "errors") or ()
    has_failed = field_of(episode, "ok") is False or bool(errors)
    for trace in field_of(episode, "traces") or (episode,):
        info = field_of(trace, "info")
        phases = tuple(_phases(field_of(trace, "timing")))
        arrival_s = number(field_of(field_of(info, "arrival"), "time"))
        yield FinishedSample(
            task_id=task,
            status="failed" if has_failed else "accepted",
            start_s=min((phase.start_s for phase in phases), default=arrival_s or now_s),
            end_s=max((phase.end_s for phase in phases), default=arrival_s or now_s),
            step=step if step is not None else _step(info),
            group_id=group,
            session_id=field_of(trace, "id"),
            reason=_reason(trace, errors),
            reward=_reward(trace),
            tokens=whole_number(field_of(trace, "num_output_tokens") or field_of(episode, "num_output_tokens")),
            phases=phases,
            kind=kind or field_of(info, "kind") or "train",
        )


def _reason(trace: Any, errors: Any) -> str | None:
    """Return why an episode failed: its stop condition, else the type of its first error."""
    if not errors:
        return None
    first = errors[0]
    kind = field_of(first, "type") if isinstance(first, Mapping) else type(first).__name__
    return str(field_of(trace, "stop_condition") or kind or "error")


def _step(info: Any) -> int | None:
    """Return the step in which a trace arrived, else the one in which it was dispatched."""
    for name in ("arrival", "dispatch"):
        step = whole_number(field_of(field_of(info, name), "step"))
        if step is not None:
            return step
    return None


def _reward(trace: Any) -> float | None:
    """Return a trace's reward, else the weighted sum of its parts."""
    reward = number(field_of(trace, "reward"))
    parts = field_of(trace, "rewards")
    if reward is not None or not isinstance(parts, Mapping) or not parts:
        return reward
    total = 0.0
    for part in parts.values():
        weight = number(field_of(part, "weight"))
        total += (number(field_of(part, "score")) or number(part) or 0.0) * (1.0 if weight is None else weight)
    return total


def _phases(timing: Any) -> Iterator[SamplePhase]:
    for name in _TIMED:
        part = field_of(timing, name)
        start_s, end_s = number(field_of(part, "start")), number(field_of(part, "end"))
        if start_s and end_s and end_s >= start_s:
            yield SamplePhase(_PHASES.get(name, name), start_s, end_s)
