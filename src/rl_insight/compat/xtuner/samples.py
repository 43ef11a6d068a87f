"""Samples of a producer and their events, read from the caller's objects, which are never modified."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

TRACE_EXTRA_TRAIN_STEP = "_trace_train_step"
TRACE_EXTRA_MODEL_STEP = "_trace_model_step"
TRACE_EXTRA_PRODUCER_FUTURE_STEP = "_trace_producer_future_step"
TRACE_EXTRA_PRODUCE_BATCH_ID = "_trace_produce_batch_id"

_PLACES = {
    "train_step": TRACE_EXTRA_TRAIN_STEP,
    "model_step": TRACE_EXTRA_MODEL_STEP,
    "producer_future_step": TRACE_EXTRA_PRODUCER_FUTURE_STEP,
    "produce_batch_id": TRACE_EXTRA_PRODUCE_BATCH_ID,
}
"""Fields of an event, and their keys in the extra fields of a sample."""
_MAX_ERROR = 500
_NOT_SAMPLES = (type(None), str, bytes, int, float)
_mappings: dict[type, bool] = {}
"""Caches whether the samples of a type are mappings: a slow check, made ten times per event."""


class TraceEvent(msgspec.Struct):
    """One line of a producer trace; None if unknown. Other programs may write any status, task or error."""

    trace_id: str
    stage: str
    timestamp_s: float
    status: Any = None
    task_name: Any = None
    uid: Any = None
    session_uid: Any = None
    train_step: int | None = None
    model_step: int | None = None
    producer_future_step: int | None = None
    produce_batch_id: str | None = None
    worker_rank: int | None = None
    elapsed_s: float | None = None
    error_msg: Any = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return msgspec.structs.asdict(self)

    def known(self) -> dict[str, Any]:
        """Return the known fields of the sample."""
        everything = msgspec.structs.asdict(self)
        for name in ("stage", "timestamp_s", "elapsed_s"):
            del everything[name]
        return {name: value for name, value in everything.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TraceEvent:
        """Return the event of a `to_dict` result; keys of other versions are ignored."""
        known: dict[str, Any] = {name: values.get(name) for name in cls.__struct_fields__}
        return cls(**known)


def build_trace_id(task_name: Any, uid: Any) -> str:
    """Return the id of a sample's trace.

    >>> build_trace_id("gsm8k", 17), build_trace_id(None, 17)
    ('gsm8k:17', 'unknown:17')
    """
    return f"{'unknown' if task_name is None else _text(task_name)}:{uid}"


def build_produce_batch_id(train_step: Any, model_step: Any, producer_future_step: Any) -> str | None:
    """Return the id of a produced batch; None if all steps are unknown.

    >>> build_produce_batch_id(5, None, 6)
    'train_step=5/model_step=none/producer_future_step=6'
    """
    if train_step is None and model_step is None and producer_future_step is None:
        return None
    train, model, future = ("none" if step is None else step for step in (train_step, model_step, producer_future_step))
    return f"train_step={train}/model_step={model}/producer_future_step={future}"


def build_trace_event(target: Any, stage: str, **given: Any) -> TraceEvent | None:
    """Return an event of a sample, or of the one named by `task_name` and `uid`; None without a uid."""

    def known(name: str) -> Any:
        value = given.get(name)
        return field_of(target, name) if value is None else value

    uid = known("uid")
    if uid is None:
        return None
    extra = field_of(target, "extra_fields")
    extra = extra if extra.__class__ is dict or isinstance(extra, Mapping) else {}
    train, model, future, batch = (
        extra.get(place) if given.get(name) is None else given[name] for name, place in _PLACES.items()
    )
    if model is None:
        model = field_of(target, "model_step")
    task_name, status, error = known("task_name"), known("status"), given.get("error_msg")
    task_name = None if task_name is None else _text(task_name)
    return TraceEvent(
        build_trace_id(task_name, uid),
        stage,
        time.time(),
        None if status is None else _text(status),
        task_name,
        uid,
        known("session_uid"),
        train,
        model,
        future,
        build_produce_batch_id(train, model, future) if batch is None else batch,
        given.get("worker_rank"),
        given.get("elapsed_s"),
        None if error is None else str(error)[:_MAX_ERROR],
    )


def samples_of(value: Any) -> list[Any]:
    """Return the samples that a value is or contains.

    >>> samples_of([{"uid": 1}, "text", {"uid": 2}])
    [{'uid': 1}, {'uid': 2}]
    """
    if isinstance(value, (list, tuple)):
        return [sample for inner in value for sample in samples_of(inner)]
    return [] if field_of(value, "uid") is None else [value]


def field_of(sample: Any, name: str) -> Any:
    """Return a field of a sample; None without one."""
    kind = type(sample)
    is_mapping = _mappings.get(kind)
    if is_mapping is None:
        if isinstance(sample, _NOT_SAMPLES):
            return None
        is_mapping = _mappings[kind] = isinstance(sample, Mapping)
    try:
        return sample.get(name) if is_mapping else getattr(sample, name, None)
    except Exception:  # noqa: BLE001  # a property of the user's that raises
        return None


def _text(value: Any) -> str:
    return value if value.__class__ is str else str(getattr(value, "value", value))
