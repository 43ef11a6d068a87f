"""Flame graphs: spans by the path of names from their role down."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.intervals import by_group, union_ns
from rl_insight.store.queries.measures import lengths_at
from rl_insight.store.queries.scope import Scope, ScopedSpans

MAX_SPANS = 500_000
"""If a scope has more spans, only the longest are shown: they account for most of the time."""
MAX_NODES = 3_000
_MAX_DEPTH = 100
_ROLE = -1
_UNPLACED = -2


class FlameNode(msgspec.Struct, frozen=True, kw_only=True):
    """All spans with the same path of names from the role down."""

    name: str
    count: int
    errors: int
    wall_ns: int
    """How long at least one of them was running."""
    total_ns: int
    """Their durations added up; of a role, those of its outermost spans."""
    children: list[FlameNode] = []
    """The most total time first."""


class Flame(msgspec.Struct, frozen=True, kw_only=True):
    """A flame graph; its roots are roles."""

    spans: int
    """How many spans it shows."""
    left_out: int
    """How many shorter spans are not shown because there are too many."""
    roots: list[FlameNode]


class _Node(msgspec.Struct):
    """A path under construction: its name (a role's for roots), its parent, and the rows of its spans."""

    name: str
    parent: int
    rows: NDArray[np.int64]
    wall_ns: int = 0
    total_ns: int = 0


_LONGEST = """
    SELECT * FROM ({rows}) WHERE duration_ns > $least
    UNION ALL (SELECT * FROM ({rows}) WHERE duration_ns = $least LIMIT $alike)
"""
_COLUMNS = "span_id, parent_id, trace_low, lane_id, name_id, (status = 'error') AS failed"
_COUNT = "SELECT (SELECT count(*) FROM {ended} WHERE {where}) + (SELECT count(*) FROM {opened} WHERE {where})"


def flame(cursor: Cursor, scope: Scope | None = None, now_ns: int | None = None) -> Flame:
    """Return a flame graph: the spans of a scope by role, name and the names of children.

    A span whose parent is not in the scope is placed under its role; open spans count up to now, or to the last sign
    of life of a process that ended or fell silent. Beyond half a
    million spans, only the longest are shown.
    """
    spans = ScopedSpans(cursor, scope or Scope(), now_ns)
    ((total,),) = spans.execute(_COUNT).fetchall()
    rows = spans.rows(_COLUMNS, with_open=True)
    found = (spans.execute(rows) if total <= MAX_SPANS else _longest(spans, rows, total)).fetchnumpy()
    taken = len(found["span_id"])
    names = dict(cursor.execute("SELECT name_id, name FROM names").fetchall())
    nodes = _nodes(found, spans, names)
    return Flame(spans=taken, left_out=total - taken, roots=_tree(nodes, found))


def _longest(spans: ScopedSpans, rows: str, total: int) -> Cursor:
    rank = total - MAX_SPANS
    least = lengths_at(spans.execute, rows, [rank])[rank]
    alike = least.shorter + least.alike - rank
    return spans.execute(_LONGEST.replace("{rows}", rows), least=least.length, alike=alike)


def _parents(found: dict[str, Any]) -> NDArray[np.int64]:
    """Return the row of each span's parent; `_ROLE` if it is not among them."""
    ids = found["span_id"]
    order = np.argsort(ids, kind="stable")
    places = np.searchsorted(ids[order], found["parent_id"])
    rows = order[np.minimum(places, len(ids) - 1)]
    is_parent = (ids[rows] == found["parent_id"]) & (found["trace_low"][rows] == found["trace_low"])
    return np.where(is_parent & (found["parent_id"] != 0), rows, _ROLE)


def _nodes(found: dict[str, Any], spans: ScopedSpans, names: dict[int, str]) -> list[_Node]:
    """Return the paths, parents before their children: roles first, then level by level."""
    if not len(found["span_id"]):
        return []
    roles = spans.role_of[found["lane_id"]]
    nodes = [_Node(role, _ROLE, np.empty(0, np.int64)) for role in spans.roles]
    parents = _parents(found)
    node_of = np.full(len(parents), _UNPLACED)
    waiting = np.arange(len(parents))
    width = int(found["name_id"].max()) + 1
    place_of: dict[int, int] = {}
    for depth in range(_MAX_DEPTH + 1):
        of_parent = np.where(parents[waiting] == _ROLE, roles[waiting], node_of[parents[waiting]])
        is_ready = of_parent != _UNPLACED
        if depth == _MAX_DEPTH or not is_ready.any():
            # Too deep, or parents that point at each other: shown under their roles.
            of_parent, is_ready = roles[waiting], np.ones(len(waiting), bool)
        ready = waiting[is_ready]
        for key, places in by_group(of_parent[is_ready] * width + found["name_id"][ready]):
            rows = ready[places]
            place = node_of[rows] = place_of.setdefault(key, len(nodes))
            if place < len(nodes):
                nodes[place].rows = np.concatenate([nodes[place].rows, rows])
            else:
                parent, name_id = divmod(key, width)
                nodes.append(_Node(names[name_id], parent, rows))
        waiting = waiting[~is_ready]
        if not len(waiting):
            break
    return nodes


def _tree(nodes: list[_Node], found: dict[str, Any]) -> list[FlameNode]:
    """Return the roots, without the smallest nodes if there are too many."""
    starts = found["start_ns"]
    ends = starts + found["duration_ns"]
    children: dict[int, list[int]] = {}
    for place, node in enumerate(nodes):
        if node.parent != _ROLE:
            children.setdefault(node.parent, []).append(place)
    for place, node in enumerate(nodes):
        rows = node.rows
        if node.parent == _ROLE:
            rows = np.concatenate([rows, *(nodes[child].rows for child in children.get(place, ()))])
        node.wall_ns = union_ns(starts[rows], ends[rows])
        node.total_ns = int(found["duration_ns"][rows].sum())
    least = sorted((node.wall_ns for node in nodes), reverse=True)[:MAX_NODES][-1] if nodes else 0
    made: dict[int, FlameNode] = {}
    for place in range(len(nodes) - 1, -1, -1):  # children before their parents
        node = nodes[place]
        if node.wall_ns < least:
            continue
        inner = [made[child] for child in children.get(place, ()) if child in made]
        made[place] = FlameNode(
            name=node.name,
            count=len(node.rows),
            errors=int(found["failed"][node.rows].sum()),
            wall_ns=node.wall_ns,
            total_ns=node.total_ns,
            children=sorted(inner, key=lambda one: -one.total_ns),
        )
    roots = [made[place] for place, node in enumerate(nodes) if node.parent == _ROLE and place in made]
    return sorted((root for root in roots if root.children), key=lambda one: -one.total_ns)
