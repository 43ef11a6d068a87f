"""The scope of hotspots and flame graphs."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np

from rl_insight.schema.tables import LAST_TIME_NS
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor, Parameters, conditions, used
from rl_insight.store.queries.process_ends import LANE_ENDS, register_ends
from rl_insight.store.queries.recorded import SPAN_FRAGMENTS, recorded_spans
from rl_insight.store.queries.steps import step_range, stepped_spans


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """Which spans to analyze: all, one step, the last steps, a window; all conditions must match.

    Spans are clipped to a window, and open spans count as long as `process_ends` says.
    """

    step: int | None = None
    last_steps: int | None = None
    """The latest step is `last_steps=1`."""
    start_ns: int | None = None
    end_ns: int | None = None
    lane_ids: list[int] | None = None
    segment: str | None = None

    @property
    def is_window(self) -> bool:
        """Whether time is among the conditions."""
        return self.start_ns is not None or self.end_ns is not None


STEP_FRAGMENTS = {"first_step": "step >= $first_step", "last_step": "step <= $last_step"}
_FRAGMENTS = STEP_FRAGMENTS | {
    # A span of length zero is inside if it starts there.
    "from_ns": "(start_ns + clock_offset_ns + duration_ns > $from_ns OR start_ns + clock_offset_ns >= $from_ns)",
    "until_ns": "start_ns + clock_offset_ns < $until_ns",
    "lanes": "lane_id IN (SELECT unnest($lanes))",
    "segment": "segment = $segment",
    "names": "name_id IN (SELECT unnest($names))",
}
_PLACES = "SELECT lane_id, clock_offset_ns, role FROM lanes JOIN processes USING (process)"
_ANY_OFFSET = "SELECT count(*) > 0 FROM processes WHERE clock_offset_ns <> 0"
# If no clock is off, which is the common case, millions of rows need no join with their offsets.
_SOURCES = {
    True: f"(SELECT *, rowid AS row_number FROM {{table}}) JOIN ({_PLACES}) USING (lane_id)",  # noqa: S608  (constants)
    False: "(SELECT *, rowid AS row_number, 0::BIGINT AS clock_offset_ns FROM {table})",
}
_IN_WINDOW = "(SELECT *, rowid FROM span_data WHERE {where})"
_RUNNING = f"""
    (SELECT * REPLACE (greatest(until_ns - start_ns - clock_offset_ns, 0) AS duration_ns) FROM {{source}} {LANE_ENDS})
"""  # noqa: S608  (constants)
_WHOLE = "SELECT {columns}, start_ns + clock_offset_ns AS start_ns, duration_ns FROM {source} WHERE {where}"
_PART = """
    SELECT {columns}, greatest(start_ns + clock_offset_ns, $begin_ns) AS start_ns,
        least(start_ns + clock_offset_ns + duration_ns, $end_ns) - greatest(start_ns + clock_offset_ns, $begin_ns)
            AS duration_ns
    FROM {source} WHERE {where}
"""


class ScopedSpans:
    """The spans of a scope, as SQL: `{ended}` and `{opened}` are the sources, `{where}` the condition.

    With `name_ids`, only those of some names.
    """

    def __init__(
        self, cursor: Cursor, scope: Scope, now_ns: int | None = None, *, name_ids: list[int] | None = None
    ) -> None:
        self._cursor = cursor
        self._is_window = scope.is_window
        self._where, given = conditions(_FRAGMENTS, _values(cursor, scope) | {"names": name_ids})
        places = cursor.execute(_PLACES).fetchall()
        self.roles = sorted({role for *_, role in places})
        self.role_of = np.zeros(max((lane_id for lane_id, *_ in places), default=0) + 1, np.int64)
        """By lane, the position of its role in `roles`."""
        for lane_id, _, role in places:
            self.role_of[lane_id] = self.roles.index(role)
        tables = _tables(cursor, scope)
        recorded = recorded_spans(cursor, scope.start_ns, scope.end_ns) if tables["ended"] == "span_data" else {}
        if recorded:
            tables["ended"] = _IN_WINDOW.format(where=conditions(SPAN_FRAGMENTS, recorded)[0])
        self._ended = placed(cursor, tables["ended"])
        self._opened = _RUNNING.format(source=placed(cursor, tables["opened"]))
        register_ends(cursor, time.time_ns() if now_ns is None else now_ns)
        self._parameters = given | recorded | _bounds(scope)

    def execute(self, sql: str, **more: Any) -> Cursor:
        """Run a statement with these placeholders."""
        sql = sql.format(ended=self._ended, opened=self._opened, where=self._where)
        return self._cursor.execute(sql, used(sql, self._parameters | more))

    def rows(self, columns: str, *, with_open: bool) -> str:
        """Return the statement for some columns plus the aligned `start_ns` and `duration_ns`, for `execute`.

        In a window, spans are clipped.
        """
        form = _PART if self._is_window else _WHOLE
        sources = ("{ended}", "{opened}") if with_open or self._is_window else ("{ended}",)
        return " UNION ALL ".join(form.format(columns=columns, source=source, where="{where}") for source in sources)


def placed(cursor: Cursor, table: str) -> str:
    """Return a source that adds `clock_offset_ns` and `row_number` to a table of spans."""
    ((is_any_off,),) = cursor.execute(_ANY_OFFSET).fetchall()
    return _SOURCES[is_any_off].format(table=table)


def _bounds(scope: Scope) -> Parameters:
    begin_ns = 0 if scope.start_ns is None else scope.start_ns
    end_ns = LAST_TIME_NS if scope.end_ns is None else scope.end_ns
    if begin_ns >= end_ns:
        raise QueryError(f"the window from {begin_ns} to {end_ns} is empty: it must end after it begins.")
    return {"begin_ns": begin_ns, "end_ns": end_ns}


def steps_in(cursor: Cursor, scope: Scope) -> Parameters:
    """Return the first and last step of a scope, for `STEP_FRAGMENTS`.

    The latest step is the leading role's: work that other roles do ahead of it is not part of it.
    """
    if scope.last_steps is None:
        return {"first_step": scope.step, "last_step": scope.step}
    if scope.last_steps < 1:
        raise QueryError(f"last_steps {scope.last_steps} is out of range: it must be at least 1.")
    latest = step_range(cursor)[1]
    return {"first_step": None if latest is None else latest - scope.last_steps + 1, "last_step": latest}


def _tables(cursor: Cursor, scope: Scope) -> dict[str, str]:
    if scope.step is None and scope.last_steps is None:
        return {"ended": "span_data", "opened": "open_span_data"}
    return stepped_spans(cursor)


def _values(cursor: Cursor, scope: Scope) -> Parameters:
    return steps_in(cursor, scope) | {
        "from_ns": scope.start_ns,
        "until_ns": scope.end_ns,
        "lanes": scope.lane_ids,
        "segment": scope.segment,
    }
