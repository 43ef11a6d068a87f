"""Marks on a time axis: events, checkpoints, restarted processes, and annotations.

Nearby instants with the same name, as when all ranks report the same, are merged into one mark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.schema.signs_of_life import LAST_SEEN_EVENT
from rl_insight.schema.stacks import STACKS_EVENT
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Kept, conditions, structs

if TYPE_CHECKING:
    from rl_insight.store.run_store import RunStore

MAX_MARKS = 1_000
MAX_ANNOTATIONS = 1_000
MAX_TEXT_LENGTH = 1_000
_PLACES = 500
"""A window has at most this many marks of one name."""


class Mark(msgspec.Struct, frozen=True):
    """A mark at an aligned time."""

    time_ns: int
    kind: str
    """`event`, `checkpoint`, `process` (a restart) or `annotation`."""
    name: str
    count: int
    step: int | None
    lane_id: int | None
    process_id: str | None
    role: str | None
    rank: int | None
    detail: str | None
    """The attributes of an event as JSON, the duration of a checkpoint in nanoseconds."""


class Annotation(msgspec.Struct, frozen=True):
    """A note that a person attached to a time."""

    time_ns: int
    text: str


_EVENTS = """
    SELECT min(at_ns), 'event', name, count(*), arg_min(step, at_ns), arg_min(lane_id, at_ns),
        arg_min(process_id, at_ns), arg_min(role, at_ns), arg_min(rank, at_ns), arg_min(attributes, at_ns)
    FROM (
        SELECT time_ns + clock_offset_ns AS at_ns, * FROM event_data JOIN lanes USING (lane_id)
        JOIN processes USING (process) WHERE session_id IS NULL AND NOT list_contains($internal, name)
    ) WHERE {where} GROUP BY name, at_ns // $width ORDER BY 1 LIMIT $most
"""
_CHECKPOINTS = """
    SELECT min(at_ns), 'checkpoint', name, count(*), arg_min(step, at_ns), arg_min(lane_id, at_ns),
        arg_min(process_id, at_ns), arg_min(role, at_ns), arg_min(rank, at_ns), max(duration_ns)::VARCHAR
    FROM (
        SELECT start_ns + clock_offset_ns AS at_ns, * FROM span_data JOIN lanes USING (lane_id)
        JOIN processes USING (process) JOIN names USING (name_id)
        WHERE name_id IN (SELECT name_id FROM names WHERE name ILIKE '%checkpoint%')
    ) WHERE {where} GROUP BY name, coalesce(step, at_ns // $width) ORDER BY 1 LIMIT $most
"""
# A process that began after another one of its role had ended replaces it: the run was resumed, or a worker restarted.
_RESTARTS = """
    SELECT * FROM (
        SELECT first_ns AS at_ns, 'process', coalesce(nullif(role, ''), process_id) || ' started again', 1, NULL,
            lane_id, process_id, role, rank, NULL
        FROM (
            SELECT process_id, role, rank, min(lane_id) AS lane_id, min(first_seen_ns) AS first_ns
            FROM processes LEFT JOIN lanes USING (process) GROUP BY ALL
        ) AS born
        WHERE EXISTS (
            SELECT 1 FROM processes AS old WHERE old.role = born.role AND old.rank IS NOT DISTINCT FROM born.rank
                AND old.process_id <> born.process_id AND old.last_seen_ns < born.first_ns
        )
    ) WHERE {where} ORDER BY 1 LIMIT $most
"""
_FRAGMENTS = {"start_ns": "at_ns >= $start_ns", "end_ns": "at_ns < $end_ns"}
_ANNOTATIONS = Kept[list[Annotation]]("annotations", list[Annotation])


def marks(cursor: Cursor, start_ns: int | None = None, end_ns: int | None = None) -> list[Mark]:
    """Return events outside of sessions, checkpoints, restarts of processes and annotations, in order.

    Nearby instants with the same name, as when all ranks report the same, are merged into one mark. There are at most
    `MAX_MARKS` per kind.
    """
    if start_ns is not None and end_ns is not None and end_ns <= start_ns:
        raise QueryError(f"the window from {start_ns} to {end_ns} is empty: it must end after it begins.")
    where, given = conditions(_FRAGMENTS, {"start_ns": start_ns, "end_ns": end_ns})
    width = _width(cursor, start_ns, end_ns)
    found = []
    for sql, more in (
        (_EVENTS, {"internal": [STACKS_EVENT, CONFIG_EVENT, LAST_SEEN_EVENT], "width": width}),
        (_CHECKPOINTS, {"width": width}),
        (_RESTARTS, {}),
    ):
        found += structs(cursor, Mark, sql.format(where=where), given | more | {"most": MAX_MARKS})
    for note in read_annotations(cursor):
        if (start_ns is None or note.time_ns >= start_ns) and (end_ns is None or note.time_ns < end_ns):
            found.append(Mark(note.time_ns, "annotation", note.text, 1, None, None, None, None, None, None))
    return sorted(found, key=lambda mark: (mark.time_ns, mark.kind, mark.name))


def _width(cursor: Cursor, start_ns: int | None, end_ns: int | None) -> int:
    if start_ns is None or end_ns is None:
        sql = "SELECT min(time_ns), max(time_ns) FROM event_data WHERE name <> $internal"
        ((first, last),) = cursor.execute(sql, {"internal": LAST_SEEN_EVENT}).fetchall()
        start_ns = first or 0 if start_ns is None else start_ns
        end_ns = last or 0 if end_ns is None else end_ns
    return max(1, (end_ns - start_ns) // _PLACES)


def read_annotations(cursor: Cursor) -> list[Annotation]:
    """Return the annotations of a run, in order."""
    return _ANNOTATIONS.read(cursor) or []


def annotate(store: RunStore, time_ns: int, text: str) -> list[Annotation]:
    """Set the annotation of a time and return all annotations; an empty string removes it.

    Raises:
        QueryError: there are too many, or it is too long.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise QueryError(f"the annotation has {len(text)} characters: the limit is {MAX_TEXT_LENGTH}.")
    with store.writing() as connection:
        kept = [note for note in read_annotations(connection) if note.time_ns != time_ns]
        if text.strip():
            kept.append(Annotation(time_ns, text.strip()))
        if len(kept) > MAX_ANNOTATIONS:
            raise QueryError(f"a run may have at most {MAX_ANNOTATIONS} annotations: remove some first.")
        kept.sort(key=lambda note: note.time_ns)
        _ANNOTATIONS.put(connection, kept)
    return kept
