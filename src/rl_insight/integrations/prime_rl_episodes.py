"""prime-rl's episodes as finished samples: objects of a running orchestrator, and the records of its trace files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rl_insight.integrations.samples import FinishedSample, SamplePhase, number, whole

_PHASES = {"agent": "generate", "generation": "generate", "scoring": "reward"}
"""prime-rl's names of phases to those that are known everywhere; others keep theirs."""
_TIMED = ("boot", "setup", "generation", "agent", "finalize", "scoring")


def samples_of(
    episode: Any, now_s: float, step: int | None = None, kind: str | None = None
) -> Iterator[FinishedSample]:
    """Yield each trace of an episode, or the episode where it has none, which is one that failed.

    Args:
        episode: A `verifiers` episode, or the record of one.
        now_s: The time of a trace that says nothing about its own.
        step: The step that it arrived in; without one, what the trace says.
        kind: `train` or `eval`; without one, what the trace says.
    """
    group = _of(_of(episode, "group"), "id")
    task = _of(_of(episode, "task"), "id") or _of(episode, "example_id") or group
    errors = _of(episode, "errors") or ()
    has_failed = _of(episode, "ok") is False or bool(errors)
    for trace in _of(episode, "traces") or (episode,):
        info = _of(trace, "info")
        phases = tuple(_phases(_of(trace, "timing")))
        said_s = number(_of(_of(info, "arrival"), "time"))
        yield FinishedSample(
            task_id=task,
            status="failed" if has_failed else "accepted",
            start_s=min((phase.start_s for phase in phases), default=said_s or now_s),
            end_s=max((phase.end_s for phase in phases), default=said_s or now_s),
            step=step if step is not None else _step(info),
            group_id=group,
            session_id=_of(trace, "id"),
            reason=_reason(trace, errors),
            reward=_reward(trace),
            tokens=whole(_of(trace, "num_output_tokens") or _of(episode, "num_output_tokens")),
            phases=phases,
            kind=kind or _of(info, "kind") or "train",
        )


def _reason(trace: Any, errors: Any) -> str | None:
    """Return why an episode failed: how the trace stopped, else the kind of its first error."""
    if not errors:
        return None
    first = errors[0]
    kind = _of(first, "type") if isinstance(first, Mapping) else type(first).__name__
    return str(_of(trace, "stop_condition") or kind or "error")


def _step(info: Any) -> int | None:
    """Return the step that a trace came back at, else the one that sent it out."""
    for name in ("arrival", "dispatch"):
        step = whole(_of(_of(info, name), "step"))
        if step is not None:
            return step
    return None


def _reward(trace: Any) -> float | None:
    """Return a trace's reward: what it says, else the weighted sum of its parts."""
    said = number(_of(trace, "reward"))
    parts = _of(trace, "rewards")
    if said is not None or not isinstance(parts, Mapping) or not parts:
        return said
    total = 0.0
    for part in parts.values():
        weight = number(_of(part, "weight"))
        total += (number(_of(part, "score")) or number(part) or 0.0) * (1.0 if weight is None else weight)
    return total


def _phases(timing: Any) -> Iterator[SamplePhase]:
    for name in _TIMED:
        part = _of(timing, name)
        start_s, end_s = number(_of(part, "start")), number(_of(part, "end"))
        if start_s and end_s and end_s >= start_s:
            yield SamplePhase(_PHASES.get(name, name), start_s, end_s)


def _of(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
