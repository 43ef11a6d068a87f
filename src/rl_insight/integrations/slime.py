"""slime: two flags that take the path of a function, and no code.

--custom-rollout-log-function-path rl_insight.integrations.slime.log_rollout
--custom-eval-rollout-log-function-path rl_insight.integrations.slime.log_eval_rollout

Both return False, so that slime logs as before. Samples become sessions, and the spans of slime's trace their phases;
with either flag, slime's timers become states.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from types import ModuleType
from typing import Any

from rl_insight.integrations.hooks import on_import, quiet
from rl_insight.integrations.samples import FinishedSample, SamplePhase, captures_text, number, record_sample
from rl_insight.integrations.starting import ensure_started, is_wanted
from rl_insight.integrations.timers import record_starts
from rl_insight.integrations.trackers.logger import InsightLogger
from rl_insight.monitor import default_monitor as monitor
from rl_insight.schema.json_values import whole_number

_logger = InsightLogger()
_TIMERS = ("slime.observability.timer", "slime.utils.timer")
"""Modules of slime's timer, in current and in earlier releases."""
_recorded_configs: set[int] = set()
"""Ids of recorded argument objects: slime passes them with every rollout."""
_STATUSES = {"completed": "accepted", "truncated": "accepted", "aborted": "cancelled", "failed": "failed",
             "pending": "dropped"}  # fmt: skip
"""slime's sample status to the session's."""
_WHOLE_SAMPLES = frozenset({"generate_and_rm", "generate_and_rm_group"})
"""Spans of slime that enclose all others."""
_PHASES = {"sglang_generate": "generate", "reward_model": "reward", "group_reward_model": "reward"}
"""slime's span names to the well-known phases; other names are kept."""


@quiet("slime's rollout log", otherwise=False)
def log_rollout(
    rollout_id: int,
    args: Any,
    samples: Iterable[Any],
    rollout_extra_metrics: Mapping[str, Any] | None,
    rollout_time: float,
) -> bool:
    """Record a rollout: one session per sample; rewards, lengths, outcomes, duration, and slime's extra metrics."""
    if is_wanted():
        _start(args)
        flat = _flat(samples)
        values = {"rollout/time": rollout_time, **_of_samples(flat), **(rollout_extra_metrics or {})}
        _logger.log(values, int(rollout_id))
        _record_sessions(flat, int(rollout_id), float(rollout_time))
        monitor.set_step(int(rollout_id) + 1)
    return False


@quiet("slime's evaluation log", otherwise=False)
def log_eval_rollout(
    rollout_id: int, args: Any, data: Mapping[str, Mapping[str, Any]], extra_metrics: Mapping[str, Any] | None
) -> bool:
    """Record an evaluation: the mean reward of each dataset, and slime's extra metrics."""
    if is_wanted():
        _start(args)
        rewards = {f"eval/{name}": fmean(found["rewards"]) for name, found in data.items() if found.get("rewards")}
        _logger.log({**rewards, **(extra_metrics or {})}, int(rollout_id))
    return False


def _start(args: Any) -> None:
    project = getattr(args, "wandb_project", None) or "slime"
    ensure_started(str(project), str(getattr(args, "wandb_group", None) or "training"), role="rollout")
    if id(args) not in _recorded_configs:
        _recorded_configs.add(id(args))
        monitor.record_config(args)
    instrument()


def instrument() -> None:
    """Record slime's timers if a server is configured or running. Idempotent."""
    if is_wanted():
        for name in _TIMERS:
            on_import(name, _patch_timer)


def _flat(samples: Iterable[Any]) -> list[Any]:
    """Return the samples without their groups."""
    return [sample for one in samples for sample in (one if isinstance(one, list) else [one])]


def _record_sessions(samples: Iterable[Any], step: int, seconds: float) -> None:
    """Record each sample as a session that spans its trace, or the entire rollout if it has none."""
    now = time.time()
    for sample in samples:
        outcome = _status_of(sample)
        group = getattr(sample, "group_index", None)
        texts: dict[str, Any] = {}
        if captures_text():
            texts = {"prompt": getattr(sample, "prompt", None), "response": getattr(sample, "response", None)}
        spans = list(_spans_of(sample))
        record_sample(
            FinishedSample(
                task_id=group,
                status=_STATUSES.get(outcome, "accepted"),
                start_s=min((span.start_s for span in spans), default=now - seconds),
                end_s=max((span.end_s for span in spans), default=now),
                step=step,
                group_id=None if group is None else f"{step}/{group}",
                reason=None if outcome == "completed" else outcome,
                reward=_reward_of(sample),
                tokens=whole_number(sample.response_length),
                texts=texts,
                phases=tuple(span for span in spans if span.name not in _WHOLE_SAMPLES),
            )
        )


def _spans_of(sample: Any) -> Iterator[SamplePhase]:
    """Yield the finished spans of a sample's trace, with the attributes from slime and SGLang."""
    trace = getattr(sample, "trace", None)
    begun: dict[Any, tuple[float, Mapping[str, Any]]] = {}
    for event in (trace or {}).get("events") or ():
        moment, attributes = number(event.get("ts")), event.get("attrs") or {}
        if moment is None:
            continue
        if event.get("type") == "span_start":
            begun[event.get("span_id")] = moment, attributes
        elif event.get("type") == "span_end" and event.get("span_id") in begun:
            start_s, known = begun.pop(event.get("span_id"))
            name = str(event.get("name"))
            yield SamplePhase(_PHASES.get(name, name), start_s, moment, {**known, **attributes})


def _status_of(sample: Any) -> str:
    return str(getattr(sample.status, "value", sample.status))


def _reward_of(sample: Any) -> float | None:
    """Return a sample's reward; if it has several parts, the one that slime calls the score."""
    reward = sample.reward
    return number(reward.get("score", reward.get("reward")) if isinstance(reward, Mapping) else reward)


def _of_samples(flat: Sequence[Any]) -> dict[str, float]:
    """Return the mean reward and length of samples, and their number by status."""
    rewards = [float(sample.reward) for sample in flat if isinstance(sample.reward, (int, float))]
    lengths = [int(sample.response_length) for sample in flat]
    values: dict[str, float] = {"rollout/samples": len(flat)}
    if rewards:
        values["rollout/reward_mean"] = fmean(rewards)
    if lengths:
        values["rollout/response_length_mean"] = fmean(lengths)
    counts = Counter(map(_status_of, flat))
    return {**values, **{f"rollout/samples_{status}": count for status, count in counts.items()}}


def _patch_timer(module: ModuleType) -> None:
    record_starts(module, stop="end", label="name")
