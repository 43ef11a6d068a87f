"""The fields of a session, listed once.

`StoredSession` is a session as the store and the API represent it; `Snapshot` is a report from its owner. The
store's columns, the field order of a record, imports and exports are derived from these two classes. Add new fields to
both.
"""

from __future__ import annotations

from typing import Any, Final, get_type_hints

import msgspec

from rl_insight.schema.json_values import whole_number

PENDING: Final = "pending"
FAILED: Final = "failed"
ACCEPTED: Final = "accepted"
LOST: Final = "lost"
CANCELLED: Final = "cancelled"
STATUSES: Final = (PENDING, ACCEPTED, "rejected", FAILED, "dropped", CANCELLED, LOST)

STATUS_OF_OUTCOME: Final = {"ok": ACCEPTED, "error": FAILED, "cancelled": CANCELLED}
"""The status of a session whose span ended with an outcome and that nothing else decided."""
BAD_OUTCOMES: Final = {FAILED: "error", CANCELLED: "cancelled"}
"""The outcome of the span of an unsuccessful session, by its status; other statuses leave it as it is."""

EXECUTION: Final = "execution"
GENERATE: Final = "generate"
KNOWN_PHASES: Final = (EXECUTION, GENERATE, "reward", "toolcall")
"""Phases with a field for their duration; other phases are only in `phase_seconds`."""


class StoredSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sample of one task; `_ts` are aligned seconds since 1970, `_s` durations in seconds."""

    session_id: str
    task_id: str | None = None
    process_id: str | None = None
    rank: int | None = None
    role: str | None = None
    status: str = PENDING
    """`pending`, `accepted`, `rejected`, `failed`, `dropped`, `cancelled` or `lost`."""
    reason: str | None = None
    step: int | None = None
    group_id: str | None = None
    """The group in which the reward is compared, as in GRPO; the task by default."""
    model_version: str | None = None
    reward: float | None = None
    tokens: int | None = None
    turns: int | None = None
    """The counter `turns`, or else the number of `generate` phases."""
    submit_ts: float | None = None
    enqueue_ts: float | None = None
    wait_return_ts: float | None = None
    finalized_ts: float | None = None
    queue_wait_s: float | None = None
    runner_wait_s: float | None = None
    execution_s: float | None = None
    post_wait_s: float | None = None
    total_s: float | None = None
    generate_s: float | None = None
    reward_s: float | None = None
    toolcall_s: float | None = None
    rollout_stats: dict[str, Any] = {}
    phase_seconds: dict[str, float] = {}
    """All phases by name, including those above."""
    phases: dict[str, list[dict[str, Any]]] = {}
    """Phase name to its intervals: `start_ts`, `end_ts`, `outcome`, `payload`, and the `span_id` in the timeline."""
    counters: dict[str, float] = {}


class Snapshot(msgspec.Struct, omit_defaults=True, kw_only=True):
    """The owner's latest report of a session; times are seconds since 1970. A record has the fields in this order.

    User-supplied values may have any JSON type: one bad value must not invalidate the rest.
    """

    task_id: Any = None
    session_id: int | str = ""
    """The id given by its owner; in a batch, a string id is only in the column."""
    rank: int | None = None
    role: str | None = None
    status: str | None = None
    """None: the owner has not reported yet, so the status is derived from the phases."""
    reason: Any = None
    submit_ts: float | None = None
    enqueue_ts: float | None = None
    wait_return_ts: float | None = None
    finalized_ts: float | None = None
    rollout_stats: Any = None
    counters: Any = None
    step: int | None = None
    group_id: Any = None
    model_version: Any = None
    reward: Any = None
    tokens: Any = None


FIELDS: Final = StoredSession.__struct_fields__
REPORTED: Final = tuple(name for name in Snapshot.__struct_fields__ if name not in {"session_id", "status"})
"""The fields of a snapshot that can be absent."""
DEFAULTS: Final[dict[str, str]] = {"group_id": "task_id"}
"""Fields that default to the value of another field in the store."""
MARKS: Final = tuple(name for name in REPORTED if name.endswith("_ts"))
DERIVED: Final = (*(name for name in FIELDS if name.endswith("_s")), "phase_seconds", "turns")
"""Durations and turns, which are derived from the marks and the phases."""

_KINDS: Final = {name: str(kind) for name, kind in get_type_hints(StoredSession).items()}
OBJECTS: Final = frozenset(name for name, kind in _KINDS.items() if kind.startswith("dict"))
"""Compound fields."""
SORTABLE: Final = tuple(name for name in FIELDS if name not in OBJECTS)
PHASE_COLUMNS: Final = {
    "start_ts": "DOUBLE",
    "end_ts": "DOUBLE",
    "span_id": "UBIGINT",
    "name": "VARCHAR",
    "outcome": "VARCHAR",
    "payload": "VARCHAR",
}
"""A phase in the store; its payload is a JSON object. Phases are in order of start."""
_PHASES = f"STRUCT({', '.join(f'{name} {kind}' for name, kind in PHASE_COLUMNS.items())})[]"


def _store_type(name: str) -> str:
    if name in OBJECTS:
        return _PHASES if name == "phases" else "VARCHAR"
    return "DOUBLE" if "float" in _KINDS[name] else "BIGINT" if "int" in _KINDS[name] else "VARCHAR"


COLUMNS: Final = {name: _store_type(name) for name in FIELDS}
"""The fields as columns of the store."""


def clean(name: str, value: Any) -> Any:
    """Convert a user-supplied value to the type of a session field; None if that is impossible.

    >>> clean("task_id", 17), clean("reward", "NaN"), clean("tokens", "many"), clean("counters", None)
    ('17', nan, None, {})
    """
    if name in OBJECTS:
        return value if isinstance(value, dict) else {}
    if value is None:
        return None
    kind = COLUMNS[name]
    return str(value) if kind == "VARCHAR" else number_of(value) if kind == "DOUBLE" else whole_number(value)


def number_of(value: Any) -> float | None:
    """Return a number, including one that JSON represents as a string, such as `NaN`."""
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError, OverflowError):
        return None
