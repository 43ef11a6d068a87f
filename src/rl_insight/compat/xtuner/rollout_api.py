"""XTuner's rollout endpoints as spans, and their context across Ray calls.

Tracing requires a configured trace and `XTUNER_TRACE_ENABLE_ROLLOUT=1`.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any

from rl_insight.compat.xtuner import inject_trace_context, set_trace_attributes, trace_span
from rl_insight.compat.xtuner.runtime import ROLLOUT_VARIABLE, active_runtime
from rl_insight.compat.xtuner.samples import field_of
from rl_insight.recorder.decorators import surrounded

__all__ = [
    "TRACE_CARRIER_EXTRA_FIELD",
    "TRACE_METADATA_EXTRA_FIELD",
    "TRACE_ROLLOUT_ENABLED_ENV",
    "extract_rollout_trace_parent_carrier",
    "is_rollout_trace_enabled",
    "rollout_state_final_attributes",
    "rollout_state_initial_attributes",
    "trace_rollout_endpoint",
    "trace_rollout_remote",
]

logger = logging.getLogger("rl_insight")

TRACE_ROLLOUT_ENABLED_ENV = ROLLOUT_VARIABLE
TRACE_CARRIER_EXTRA_FIELD = "_xtuner_trace_carrier"
TRACE_METADATA_EXTRA_FIELD = "_xtuner_trace_metadata"


def is_rollout_trace_enabled() -> bool:
    """Return whether rollout endpoints are traced."""
    return os.environ.get(TRACE_ROLLOUT_ENABLED_ENV) == "1" and active_runtime().enabled


def trace_rollout_endpoint(
    span_name: str,
    *,
    target_arg: str = "rollout_state",
    initial_attributes: Callable[[Any, Any], Mapping[str, Any]] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Trace each call of a coroutine function that takes one sample.

    Args:
        span_name: The name of the span.
        target_arg: The parameter with the sample.
        initial_attributes: Called with the owner and the sample; `rollout_state_initial_attributes` by default.

    Raises:
        TypeError: the function is not a coroutine function.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError("trace_rollout_endpoint() decorates coroutine functions only.")
        signature = inspect.signature(function)

        @contextmanager
        def endpoint(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
            state, owner = None, None
            if is_rollout_trace_enabled():
                bound = signature.bind(*args, **kwargs)
                bound.apply_defaults()
                state = bound.arguments.get(target_arg)
                owner = bound.arguments.get("self", args[0] if args else None)
                if not _is_sample(state):
                    kind = type(state).__name__
                    logger.warning("%s is not traced: its argument %s is a %s.", span_name, target_arg, kind)
                    state = None
            if state is None:
                yield None
                return
            make = initial_attributes or (lambda _owner, sample: rollout_state_initial_attributes(sample))
            attributes = {"xtuner.stage": span_name, **make(owner, state)}
            with trace_span(span_name, attributes, parent_carrier=extract_rollout_trace_parent_carrier(state)):
                yield state

        def ended(state: Any, result: Any) -> Any:
            if state is not None:
                set_trace_attributes(rollout_state_final_attributes(result if _is_sample(result) else state))
            return result

        return surrounded(function, endpoint, ended)

    return decorate


def trace_rollout_remote(remote_method: Any, *args: Any, target: Any = None, **kwargs: Any) -> Any:
    """Call a Ray method with the current context in the sample's extra fields, which are restored afterward.

    Raises:
        TypeError: an argument is a collection of samples.
        ValueError: not exactly one argument is a sample.
    """
    if not is_rollout_trace_enabled():
        return remote_method.remote(*args, **kwargs)
    state = target if target is not None else _only_sample((*args, *kwargs.values()))
    extra = field_of(state, "extra_fields")
    carrier = inject_trace_context({})
    if not isinstance(extra, MutableMapping) or not carrier:
        return remote_method.remote(*args, **kwargs)
    before = {key: extra[key] for key in (TRACE_CARRIER_EXTRA_FIELD,) if key in extra}
    extra[TRACE_CARRIER_EXTRA_FIELD] = dict(carrier)
    try:
        return remote_method.remote(*args, **kwargs)
    finally:
        extra.pop(TRACE_CARRIER_EXTRA_FIELD, None)
        extra.update(before)


def extract_rollout_trace_parent_carrier(state: Any) -> dict[str, str] | None:
    """Remove the carrier from a sample's extra fields and return it; None without one."""
    extra = field_of(state, "extra_fields")
    carrier = extra.pop(TRACE_CARRIER_EXTRA_FIELD, None) if isinstance(extra, MutableMapping) else None
    if not isinstance(carrier, Mapping):
        return None
    return {str(key): str(value) for key, value in carrier.items()}


def rollout_state_initial_attributes(state: Any) -> dict[str, Any]:
    """Return the attributes of a sample before its endpoint runs."""
    extra = field_of(state, "extra_fields")
    extra = extra if isinstance(extra, Mapping) else {}
    metadata = extra.get(TRACE_METADATA_EXTRA_FIELD, extra)
    metadata = metadata if isinstance(metadata, Mapping) else {}
    status = field_of(state, "status")
    return _known(
        {
            "xtuner.status": getattr(status, "value", status),
            "xtuner.rollout_id": _first(state, "rollout_id", "uid"),
            "xtuner.group_id": _first(state, "group_id", "message_uid"),
            "xtuner.session_id": _first(state, "session_id", "session_uid"),
            "xtuner.task_name": field_of(state, "task_name") or metadata.get("task_name"),
            "xtuner.producer_future_step": metadata.get("producer_future_step"),
            "xtuner.model_step": metadata.get("model_step"),
            "prompt.tokens": _length(field_of(state, "prompt_ids")),
        }
    )


def rollout_state_final_attributes(state: Any) -> dict[str, Any]:
    """Return the attributes of a sample after its endpoint has run."""
    reward = field_of(state, "reward")
    reward = reward if isinstance(reward, Mapping) else {}
    return _known(
        {
            **rollout_state_initial_attributes(state),
            "finish_reason": field_of(state, "finish_reason"),
            "error.message": field_of(state, "error_msg"),
            "completion.tokens": _length(field_of(state, "response_ids")),
            "reward.score": reward.get("score"),
            "reward.pass": reward.get("pass"),
        }
    )


def _is_sample(value: Any) -> bool:
    return not isinstance(value, (list, tuple)) and _first(value, "rollout_id", "uid") is not None


def _only_sample(values: tuple[Any, ...]) -> Any:
    if any(isinstance(value, (list, tuple, set)) and any(map(_is_sample, value)) for value in values):
        raise TypeError("trace_rollout_remote() takes one sample, not a collection of them.")
    found = [value for value in values if _is_sample(value)]
    if len(found) != 1:
        raise ValueError(f"trace_rollout_remote() takes exactly one sample, but got {len(found)}.")
    return found[0]


def _first(state: Any, *names: str) -> Any:
    return next((value for name in names if (value := field_of(state, name)) is not None), None)


def _length(values: Any) -> int | None:
    try:
        return len(values)
    except TypeError:
        return None


def _known(attributes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if value is not None}
