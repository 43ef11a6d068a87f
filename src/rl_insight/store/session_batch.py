"""Complete sessions, as in a file of finished sessions.

Live processes report sessions in parts, which are merged one session at a time (see `rl_insight.store.sessions`).
Complete sessions need no merging: thousands of them are inserted at once, in columns.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import isfinite
from typing import Any

import msgspec

from rl_insight.schema import Batch
from rl_insight.schema.tables import Sessions
from rl_insight.sessions.model import OBJECTS, REPORTED
from rl_insight.store.frame import Frame, ListColumn, Texts

_encode = msgspec.json.Encoder().encode


class SessionBatch(Batch, kw_only=True):
    """A batch of complete sessions: it has all their spans, and rows instead of snapshots."""

    texts: Texts
    """The batch's strings, encoded once for spans and sessions."""
    rows: Frame
    """The sessions in the columns that `session_rows.insert_sessions` takes."""


def plain(batch: Batch) -> Batch:
    """Return a batch that can be sent: each complete session becomes a snapshot."""
    if not isinstance(batch, SessionBatch):
        return batch
    names = [name for name, column in batch.rows.columns.items() if not isinstance(column, ListColumn)]
    columns = (batch.rows.to_list(name) for name in names)
    rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
    strings = list(batch.strings)

    def positions(texts: Iterable[str | None]) -> bytes:
        """Add strings and return their positions."""
        column = array("I")
        for text in texts:
            if text is not None:
                strings.append(text)
            column.append(0 if text is None else len(strings))
        return column.tobytes()

    sessions = Sessions(
        session_id=positions(row["session_id"] for row in rows),
        task_id=positions(row["task_id"] for row in rows),
        status=positions(row["status"] for row in rows),
        time_ns=batch.rows.numbers("snapshot_ns").astype("<i8").tobytes(),
        record=positions(map(_snapshot_text, rows)),
    )
    parts = {name: getattr(batch, name) for name in Batch.__struct_fields__}
    return Batch(**parts | {"strings": strings, "sessions": sessions})


def _snapshot_text(row: dict[str, Any]) -> str:
    """Return the JSON of a snapshot, see `rl_insight.sessions.model.Snapshot`."""
    fields = {name: row[name] for name in ("session_id", *REPORTED) if row[name] is not None}
    fields |= {name: msgspec.Raw(fields[name].encode()) for name in OBJECTS & fields.keys()}
    if not isfinite(fields.get("reward", 0.0)):
        fields["reward"] = str(fields["reward"])  # JSON has no number for it
    return _encode(fields).decode()
