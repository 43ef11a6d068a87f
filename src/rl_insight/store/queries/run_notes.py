"""The configuration, tags and notes of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rl_insight.schema.names import CONFIG_EVENT
from rl_insight.schema.records import UNREADABLE, read_object
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Kept

if TYPE_CHECKING:
    from rl_insight.store.run_store import RunStore

MAX_TAGS: Final = 50
MAX_TAG_LENGTH: Final = 60
MAX_NOTES_LENGTH: Final = 20_000

_CONFIG = """
    SELECT attributes FROM event_data JOIN lanes USING (lane_id) JOIN processes USING (process)
    WHERE name = $name ORDER BY time_ns + clock_offset_ns
"""


class RunNotes(msgspec.Struct, frozen=True):
    """The tags and notes of a run."""

    tags: list[str] = []
    notes: str = ""


_NOTES: Final = Kept[RunNotes]("notes", RunNotes)


class ConfigDifference(msgspec.Struct, frozen=True):
    """A key of the configuration whose value differs between two runs; None where a run does not have it."""

    key: str
    first: Any
    second: Any


def run_config(cursor: Cursor) -> dict[str, Any]:
    """Return the configuration that a run recorded, by dotted key; the latest value of each counts."""
    found: dict[str, Any] = {}
    for (attributes,) in cursor.execute(_CONFIG, {"name": CONFIG_EVENT}).fetchall():
        found |= read_object(attributes)
    found.pop(UNREADABLE, None)
    return dict(sorted(found.items()))


def config_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[ConfigDifference]:
    """Return the keys whose values differ, in order.

    >>> config_differences({"lr": 1e-6, "seed": 1}, {"lr": 1e-5, "seed": 1})
    [ConfigDifference(key='lr', first=1e-06, second=1e-05)]
    """
    return [
        ConfigDifference(key, first.get(key), second.get(key))
        for key in sorted({*first, *second})
        if (key in first) != (key in second) or first.get(key) != second.get(key)
    ]


def read_notes(cursor: Cursor) -> RunNotes:
    """Return the tags and notes of a run."""
    return _NOTES.read(cursor) or RunNotes()


def write_notes(store: RunStore, tags: Iterable[str] | None = None, notes: str | None = None) -> RunNotes:
    """Set the tags or the notes of a run, or both; None keeps the current value.

    Raises:
        QueryError: there are too many tags, or a tag or the notes are too long.
    """
    clean = None if tags is None else list(dict.fromkeys(tag.strip() for tag in tags if tag.strip()))
    if clean is not None and len(clean) > MAX_TAGS:
        raise QueryError(f"a run cannot have {len(clean)} tags: at most {MAX_TAGS} are kept. Remove some.")
    for tag in clean or ():
        if len(tag) > MAX_TAG_LENGTH:
            raise QueryError(f"the tag {tag[:20]!r}... is too long: use at most {MAX_TAG_LENGTH} characters.")
    if notes is not None and len(notes) > MAX_NOTES_LENGTH:
        raise QueryError(f"the notes have {len(notes)} characters: use at most {MAX_NOTES_LENGTH}.")
    with store.writing() as connection:
        before = read_notes(connection)
        after = RunNotes(
            before.tags if clean is None else clean,
            before.notes if notes is None else notes.strip(),
        )
        _NOTES.put(connection, after)
    return after
