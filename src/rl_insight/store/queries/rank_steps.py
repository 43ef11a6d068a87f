"""A phase or a metric by process and step: the overview of a run with many ranks."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rl_insight.schema.names import device_of, process_name
from rl_insight.schema.records import read_object
from rl_insight.store.errors import QueryError
from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.intervals import by_group, covered_until, merged
from rl_insight.store.queries.recorded import clock_offsets
from rl_insight.store.queries.steps import StepWindow, finished_steps
from rl_insight.store.tables import LANE_CLOCK, LONG_SPAN_NS

_MAX_NAMES = 100


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One process, or one device of a host, by step."""

    title: str
    process_id: str
    role: str
    rank: int | None
    host: str
    lane_id: int | None
    """The first lane of the process; None where it has none."""
    values: list[float | None]
    """One per step; None where nothing was recorded."""


class RankGrid(msgspec.Struct, frozen=True, kw_only=True):
    """Values by process and finished step."""

    name: str
    is_metric: bool
    """The mean of a metric; otherwise seconds in which at least one such span of the process was running."""
    steps: list[int]
    start_ns: list[int]
    rows: list[RankRow]
    names: list[str]
    """The available states and operations, the most time first."""


_PROCESSES = """
    SELECT process, process_id, role, rank, host, min(lane_id)
    FROM processes LEFT JOIN lanes USING (process) GROUP BY ALL ORDER BY role, rank NULLS LAST, process_id
"""
_OF_NAME = "name_id IN (SELECT name_id FROM names WHERE name = $name)"
# Short spans are found by the time order of the file; long ones may have started much earlier.
_SPANS = f"""
    SELECT process, start_ns + clock_offset_ns AS start_ns, start_ns + clock_offset_ns + duration_ns AS end_ns
    FROM span_data {LANE_CLOCK}
    WHERE {_OF_NAME} AND start_ns < $until_ns AND (start_ns >= $from_ns OR duration_ns >= $long)
"""  # noqa: S608  (constants)
_NAMES = """
    SELECT name FROM span_data JOIN names USING (name_id)
    WHERE start_ns >= $from_ns AND start_ns < $until_ns AND segment <> 'session'
    GROUP BY name ORDER BY sum(duration_ns) DESC, name LIMIT $most
"""
_SERIES = "SELECT series_id, process, labels FROM series WHERE name = $name AND kind IN ('gauge', 'counter')"
_SAMPLES = """
    SELECT series_id, time_ns + clock_offset_ns AS time_ns, value
    FROM sample_data JOIN (
        SELECT series_id, clock_offset_ns FROM series JOIN processes USING (process) WHERE series.name = $name
    ) USING (series_id)
    WHERE time_ns + clock_offset_ns >= $start_ns AND time_ns + clock_offset_ns < $end_ns
"""
_DIGITS = re.compile(r"(\d+)")


def natural_key(text: str) -> list[tuple[int, str]]:
    """Return a key that sorts numbers within strings by value.

    >>> sorted(["rank_10", "rank_2"], key=natural_key)
    ['rank_2', 'rank_10']
    """
    parts = _DIGITS.split(text)
    return [(int(part), "") if place % 2 else (0, part) for place, part in enumerate(parts)]


def rank_steps(
    cursor: Cursor,
    first: int,
    last: int,
    *,
    name: str | None = None,
    metric: str | None = None,
    role: str | None = None,
    now_ns: int | None = None,
) -> RankGrid:
    """Return a phase (by default the one with the most time) or a metric by process and finished step.

    For a metric of devices, such as `gpu_utilization_ratio`, a row is one device of a host.
    """
    if name is not None and metric is not None:
        raise QueryError("name and metric are mutually exclusive: give one of them.")
    _, windows = finished_steps(cursor, first, last, now_ns)
    processes = {row[0]: row[1:] for row in cursor.execute(_PROCESSES).fetchall()}
    names = _names(cursor, windows) if windows else []
    wanted = name if name is not None else (names[0] if names else "")
    rows: list[RankRow] = []
    if windows and metric is not None:
        rows = _of_metric(cursor, metric, windows, processes)
    elif windows:
        rows = _of_spans(cursor, wanted, windows, processes)
    return RankGrid(
        name=wanted if metric is None else metric,
        is_metric=metric is not None,
        steps=[one.step for one in windows],
        start_ns=[one.start_ns for one in windows],
        rows=[row for row in rows if role is None or row.role == role],
        names=names,
    )


def _bounds(cursor: Cursor, windows: list[StepWindow]) -> dict[str, int]:
    least, most = clock_offsets(cursor)
    return {
        "from_ns": min(one.start_ns for one in windows) - most - LONG_SPAN_NS,
        "until_ns": max(one.end_ns or 0 for one in windows) - least,
    }


def _names(cursor: Cursor, windows: list[StepWindow]) -> list[str]:
    rows = cursor.execute(_NAMES, _bounds(cursor, windows) | {"most": _MAX_NAMES}).fetchall()
    return [name for (name,) in rows]


def _of_spans(
    cursor: Cursor, name: str, windows: list[StepWindow], processes: dict[int, tuple[Any, ...]]
) -> list[RankRow]:
    given = _bounds(cursor, windows) | {"name": name, "long": LONG_SPAN_NS}
    found = cursor.execute(_SPANS, given).fetchnumpy()
    starts = np.array([one.start_ns for one in windows], np.int64)
    ends = np.array([one.end_ns for one in windows], np.int64)
    values = {}
    for process, rows in by_group(found["process"]):
        intervals = merged(found["start_ns"][rows], found["end_ns"][rows])
        seconds = (covered_until(*intervals, ends) - covered_until(*intervals, starts)) / 1e9
        if seconds.any():
            values[process] = [float(value) if value > 0 else None for value in seconds]
    return [_row(place, values[process]) for process, place in processes.items() if process in values]


def _row(place: tuple[Any, ...], values: list[float | None], title: str | None = None) -> RankRow:
    process_id, role, rank, host, lane_id = place
    named = process_name(role, rank, process_id) if title is None else title
    return RankRow(title=named, process_id=process_id, role=role, rank=rank, host=host, lane_id=lane_id, values=values)


def _of_metric(
    cursor: Cursor, metric: str, windows: list[StepWindow], processes: dict[int, tuple[Any, ...]]
) -> list[RankRow]:
    starts = np.array([one.start_ns for one in windows], np.int64)
    ends = np.array([one.end_ns for one in windows], np.int64)
    order = np.argsort(starts, kind="stable")
    given = {"name": metric, "start_ns": int(starts.min()), "end_ns": int(ends.max())}
    found = cursor.execute(_SAMPLES, given).fetchnumpy()
    place = order[np.searchsorted(starts[order], found["time_ns"], "right") - 1]
    usable = (found["time_ns"] < ends[place]) & np.isfinite(found["value"])
    # Series of one device, for example of restarted processes, share a row.
    titles: dict[int, tuple[str, int]] = {}
    for series_id, process, labels in cursor.execute(_SERIES, {"name": metric}).fetchall():
        titles[series_id] = _device(labels, processes[process]), process
    sums: dict[str, NDArray[np.float64]] = {}
    owner: dict[str, int] = {}
    for series_id, every in by_group(found["series_id"]):
        rows = every[usable[every]]
        title, process = titles[series_id]
        owner.setdefault(title, process)
        both = sums.setdefault(title, np.zeros((2, len(windows))))
        both[0] += np.bincount(place[rows], found["value"][rows], len(windows))
        both[1] += np.bincount(place[rows], minlength=len(windows))
    return [
        _row(
            processes[owner[title]],
            [float(total / count) if count else None for total, count in zip(*sums[title], strict=True)],
            title,
        )
        for title in sorted(sums, key=natural_key)
    ]


def _device(labels: str, place: tuple[Any, ...]) -> str:
    """Return the subject of a series: a device of a host, or its process."""
    known = read_object(labels)
    device = device_of(known, place[3])
    if device.gpu is not None or "source" in known:
        return device.title
    return process_name(place[1], place[2], place[0])
