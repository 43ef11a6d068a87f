"""How long spans took, group by group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_insight.store.queries.base import Cursor
from rl_insight.store.queries.intervals import (
    between_ranks,
    group_order,
    quantile_ranks,
    quantiles,
    union_ns,
    unions_ns,
)

MAX_ROWS: Final = 2_000_000
"""How many spans are in memory at once; each takes up to 100 bytes while it is measured."""
SHARES: Final = (0.5, 0.95, 0.99)
_MANY: Final = 200
"""At this many groups or more, they are measured together."""
_SLICES: Final = 1024
_TOTALS = """
    SELECT count(*), sum(duration_ns), max(duration_ns), count(*) FILTER (failed), min(start_ns), max(start_ns)
    FROM ({rows})
"""
_COUNTS = "SELECT ({column} - $first) // $width AS number, count(*) FROM ({rows}) GROUP BY number ORDER BY number"
_SLICE = "SELECT * FROM ({rows}) WHERE {column} >= $begin AND {column} < $end"
_BUCKETED = "SELECT floor(log2(greatest(duration_ns, 1)) * 16) AS bucket, duration_ns FROM ({rows})"
_BUCKETS = f"SELECT bucket, count(*) FROM ({_BUCKETED}) GROUP BY bucket ORDER BY bucket"  # noqa: S608  (constants)
_LENGTHS = f"""
    SELECT bucket, duration_ns, count(*) FROM ({_BUCKETED}) WHERE bucket IN (SELECT unnest($buckets))
    GROUP BY ALL ORDER BY duration_ns
"""  # noqa: S608  (constants)

Execute = Callable[..., Cursor]
"""Runs a statement, with its parameters by name."""


class Measured(NamedTuple):
    """How many spans a group has, and how long they took in nanoseconds."""

    spans: int
    total: int
    wall: int
    shares: Sequence[float]
    longest: int
    errors: int


NOTHING = Measured(0, 0, 0, (0.0,) * len(SHARES), 0, 0)


def measured(found: dict[str, Any], groups: NDArray[Any]) -> dict[int, Measured]:
    """Return the measures of each group."""
    if not len(groups):
        return {}
    order, bounds = group_order(groups)
    if len(bounds) > _MANY:
        return _measure_together(found, groups)
    numbers = groups[order[bounds[:-1]]].tolist()
    with ThreadPoolExecutor(2) as pool:  # NumPy gathers and sorts without the interpreter lock
        parts = [order[first:last] for first, last in pairwise(bounds)]
        return dict(zip(numbers, pool.map(lambda rows: _measure(found, rows), parts), strict=True))


def _measure(found: dict[str, Any], rows: NDArray[np.int64]) -> Measured:
    starts, durations = found["start_ns"][rows], found["duration_ns"][rows]
    return Measured(
        len(starts),
        int(durations.sum()),
        union_ns(starts, starts + durations),
        quantiles(durations, SHARES),
        int(durations.max()),
        int(np.count_nonzero(found["failed"][rows])),
    )


def _measure_together(found: dict[str, Any], groups: NDArray[Any]) -> dict[int, Measured]:
    """Return the measures of many groups in a few passes over all rows; one by one, small ones cost 50 us each."""
    by_start = np.argsort(found["start_ns"], kind="stable")
    order, bounds = group_order(groups[by_start])
    order = by_start[order]
    firsts, counts = np.array(bounds[:-1]), np.diff(bounds)
    starts, durations = found["start_ns"][order], found["duration_ns"][order]
    by_length = np.argsort(found["duration_ns"])
    lengths = found["duration_ns"][by_length[group_order(groups[by_length])[0]]]
    columns = (
        counts.tolist(),
        np.add.reduceat(durations, firsts).tolist(),
        unions_ns(starts, starts + durations, bounds).tolist(),
        np.transpose([_share(lengths, firsts, counts, share) for share in SHARES]).tolist(),
        lengths[firsts + counts - 1].tolist(),
        np.add.reduceat(found["failed"][order].astype(np.int64), firsts).tolist(),
    )
    return {number: Measured(*row) for number, *row in zip(groups[order[firsts]].tolist(), *columns, strict=True)}


def _share(
    lengths: NDArray[np.int64], firsts: NDArray[np.int64], counts: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    """Return a quantile of each group, as `quantiles` does; the lengths of a group are in order."""
    place = share * (counts - 1)
    below = place.astype(np.int64)
    low, high = lengths[firsts + below], lengths[firsts + np.minimum(below + 1, counts - 1)]
    found: NDArray[np.float64] = low + (high - low) * (place - below)
    return found


def measure_large(execute: Execute, rows: str) -> Measured:
    """Measure all spans of a statement as one group, `MAX_ROWS` at a time."""
    ((count, total, longest, errors, first, last),) = execute(_TOTALS.replace("{rows}", rows)).fetchall()
    wall, reached = 0, first
    for found in in_slices(execute, rows, "start_ns", (first, last), (last - first) // _SLICES + 1):
        ends = found["start_ns"] + found["duration_ns"]
        # An earlier span that reaches into this slice covers the time up to its end.
        begun = np.maximum(found["start_ns"], reached)
        wall += union_ns(begun, np.maximum(ends, begun))
        reached = max(reached, int(ends.max()))
    return Measured(count, int(total), wall, share_of_lengths(execute, rows, count), longest, errors)


def in_slices(
    execute: Execute, rows: str, column: str, extent: tuple[int, int], width: int
) -> Iterator[dict[str, NDArray[Any]]]:
    """Yield the rows of a statement slice by slice of a column, `MAX_ROWS` at a time.

    A slice consists of complete intervals; it has more rows only if a single interval does.
    """
    first, last = extent
    words = {"{rows}": rows, "{column}": column}
    counts = execute(_filled(_COUNTS, words), first=first, width=width).fetchall()
    edges = [first + number * width for number in slice_edges(counts, MAX_ROWS)]
    for begin, end in pairwise([*edges, last + 1]):
        yield execute(_filled(_SLICE, words), begin=begin, end=end).fetchnumpy()


def share_of_lengths(execute: Execute, rows: str, count: int) -> list[float]:
    """Return the quantiles `SHARES` of the lengths of `count` spans, as `quantiles` does."""
    found = lengths_at(execute, rows, quantile_ranks(count, SHARES))
    return between_ranks({rank: one.length for rank, one in found.items()}, count, SHARES)


class Length(NamedTuple):
    """A length, how many spans are shorter, and how many are equally long."""

    length: int
    shorter: int
    alike: int


def lengths_at(execute: Execute, rows: str, ranks: Sequence[int]) -> dict[int, Length]:
    """Return the lengths of a statement's spans at some ranks; the shortest has rank 0.

    Spans are counted in buckets first, then exact lengths in the relevant buckets. Two scans are several times faster
    than a sort or DuckDB's quantiles, and need little memory.
    """
    before, below = 0, {}
    for bucket, count in execute(_BUCKETS.replace("{rows}", rows)).fetchall():
        if any(before <= rank < before + count for rank in ranks):
            below[bucket] = before
        before += count
    found: dict[int, Length] = {}
    lengths = execute(_LENGTHS.replace("{rows}", rows), buckets=list(below)).fetchall()
    for bucket, length, count in lengths:
        shorter = below[bucket]
        found |= {rank: Length(length, shorter, count) for rank in ranks if shorter <= rank < shorter + count}
        below[bucket] += count
    return found


def slice_edges(counts: Iterable[tuple[int, int]], at_most: int) -> list[int]:
    """Return the starts of slices of at most `at_most` numbered rows; a single number may have more.

    >>> slice_edges([(0, 5), (1, 3), (7, 4), (8, 90), (9, 1)], 8)
    [0, 7, 8, 9]
    """
    edges: list[int] = []
    waiting = 0
    for number, count in counts:
        if not edges or waiting + count > at_most:
            edges.append(number)
            waiting = 0
        waiting += count
    return edges


def _filled(sql: str, words: Mapping[str, str]) -> str:
    """Fill in a statement; not with `str.format`, since `rows` may have placeholders that are filled in later."""
    for place, word in words.items():
        sql = sql.replace(place, word)
    return sql
