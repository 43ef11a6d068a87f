"""Samples of a producer, and the events about them: read from the caller's objects, which are never changed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

TRACE_EXTRA_TRAIN_STEP = "_trace_train_step"
TRACE_EXTRA_MODEL_STEP = "_trace_model_step"
TRACE_EXTRA_PRODUCER_FUTURE_STEP = "_trace_producer_future_step"
TRACE_EXTRA_PRODUCE_BATCH_ID = "_trace_produce_batch_id"

_STEPS = ("train_step", "model_step", "producer_future_step")
_MAX_ERROR = 500
_NOT_SAMPLES = (type(None), str, bytes, int, float)
_mappings: dict[type, bool] = {}
"""Whether the samples of a type are mappings; asked ten times per event, and slow to find out."""


@dataclass(slots=True)
class TraceEvent:
    """One line of a producer's trace; None for what is unknown."""

    trace_id: str
    stage: str
    timestamp_s: float
    status: str | None = None
    task_name: str | None = None
    uid: Any = None
    session_uid: Any = None
    train_step: int | None = None
    model_step: int | None = None
    producer_future_step: int | None = None
    produce_batch_id: str | None = None
    worker_rank: int | None = None
    elapsed_s: float | None = None
    error_msg: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return {name: getattr(self, name) for name in _FIELDS}  # asdict() takes ten times as long

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TraceEvent:
        """Return the event that `to_dict` gave; keys of other versions are left out."""
        known: dict[str, Any] = {name: values.get(name) for name in _FIELDS}
        return cls(**known)


_FIELDS = tuple(field.name for field in fields(TraceEvent))


def build_trace_id(task_name: Any, uid: Any) -> str:
    """Return the id of a sample's trace.

    >>> build_trace_id("gsm8k", 17), build_trace_id(None, 17)
    ('gsm8k:17', 'unknown:17')
    """
    return f"{'unknown' if task_name is None else _text(task_name)}:{uid}"


def build_produce_batch_id(train_step: Any, model_step: Any, producer_future_step: Any) -> str | None:
    """Return the id of a produced batch; None when nothing is known about it.

    >>> build_produce_batch_id(5, None, 6)
    'train_step=5/model_step=none/producer_future_step=6'
    """
    steps = dict(zip(_STEPS, (train_step, model_step, producer_future_step), strict=True))
    if all(step is None for step in steps.values()):
        return None
    return "/".join(f"{name}={'none' if step is None else step}" for name, step in steps.items())


def build_trace_event(target: Any, stage: str, **given: Any) -> TraceEvent | None:
    """Return an event about a sample, or about the one that `task_name` and `uid` name; None without a uid."""
    uid = given.pop("uid", None)
    uid = field_of(target, "uid") if uid is None else uid
    if uid is None:
        return None
    known: dict[str, Any] = {}
    for name in ("task_name", "session_uid", "status"):
        value = given.pop(name, None)
        value = field_of(target, name) if value is None else value
        known[name] = value if value is None or name == "session_uid" else _text(value)
    extra = field_of(target, "extra_fields")
    for name in (*_STEPS, "produce_batch_id"):
        value = given.pop(name, None)
        if value is None and isinstance(extra, Mapping):
            value = extra.get(f"_trace_{name}")
        known[name] = value
    if known["model_step"] is None:
        known["model_step"] = field_of(target, "model_step")
    if known["produce_batch_id"] is None:
        known["produce_batch_id"] = build_produce_batch_id(*(known[name] for name in _STEPS))
    error = given.get("error_msg")
    return TraceEvent(
        trace_id=build_trace_id(known["task_name"], uid),
        stage=stage,
        timestamp_s=time.time(),
        uid=uid,
        worker_rank=given.get("worker_rank"),
        elapsed_s=given.get("elapsed_s"),
        error_msg=None if error is None else str(error)[:_MAX_ERROR],
        **known,
    )


def samples_of(value: Any) -> list[Any]:
    """Return the samples that a value is or holds.

    >>> samples_of([{"uid": 1}, "text", {"uid": 2}])
    [{'uid': 1}, {'uid': 2}]
    """
    if isinstance(value, (list, tuple)):
        return [sample for inner in value for sample in samples_of(inner)]
    return [] if field_of(value, "uid") is None else [value]


def field_of(sample: Any, name: str) -> Any:
    """Return a sample's field; None where it has none."""
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
    return str(getattr(value, "value", value))
