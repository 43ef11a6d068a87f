"""Which batches have been taken, so that each counts once however often it is sent."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from threading import Lock

import msgspec

from rl_insight.schema.sequences import is_assigned


class LedgerEntry(msgspec.Struct, frozen=True):
    """The sequences taken from one process, as the ledger saves and restores them."""

    process_id: str
    low_water: int
    """Every sequence up to this one has been taken."""
    above: tuple[tuple[int, int], ...] = ()
    """What was taken beyond it: ranges, first and last included, ascending and apart from each other."""


class SequenceLedger:
    """Remembers which (process, sequence) pairs have been taken; safe to use from several threads.

    Sequences count from 1 and arrive in any order. What has been taken is kept as ranges, so memory grows with the
    gaps, not with the batches: an hour of batches delivered before an hour of spooled ones is two ranges.

    Args:
        max_gaps: open gaps remembered for one process. Beyond it the oldest gap is given up: what is missing there
            counts as taken from then on, and in `given_up`.
        max_processes: processes remembered. Beyond it those that ended longest ago are forgotten first.

    >>> ledger = SequenceLedger()
    >>> ledger.claim("p", 2), ledger.claim("p", 1), ledger.claim("p", 2)
    (True, True, False)
    >>> ledger.low_water("p")
    2
    """

    def __init__(self, *, max_gaps: int = 4096, max_processes: int = 100_000) -> None:
        self._max_gaps = max_gaps
        self._max_processes = max_processes
        self._lock = Lock()
        self._live: OrderedDict[str, _Ranges] = OrderedDict()
        self._ended: OrderedDict[str, _Ranges] = OrderedDict()
        self._given_up = 0

    @property
    def given_up(self) -> int:
        """Sequences that never arrived and whose gap was closed to keep memory bounded."""
        return self._given_up

    def claim(self, process_id: str, sequence: int) -> bool:
        """Take a sequence; False when it had been taken before.

        A claim that still waits for its durable write answers False as well. Whoever commits later than it claims
        must claim and commit on one thread, so that a repeated batch is not acknowledged before the first is safe.
        """
        if sequence < 1:
            raise ValueError(f"sequence {sequence} cannot be claimed: sequences count from 1.")
        with self._lock:
            ranges = self._ranges(process_id)
            if not ranges.add(sequence):
                return False
            if len(ranges.starts) > self._max_gaps + 1:
                self._given_up += ranges.close_oldest_gap()
            return True

    def release(self, process_id: str, sequence: int) -> None:
        """Give a claim back: its durable write failed, and the batch will be sent again."""
        with self._lock:
            ranges = self._live.get(process_id) or self._ended.get(process_id)
            if ranges is not None:
                ranges.remove(sequence)

    def low_water(self, process_id: str) -> int:
        """Return the sequence up to which everything has been taken; 0 for an unknown process."""
        with self._lock:
            ranges = self._live.get(process_id) or self._ended.get(process_id)
            return ranges.low_water if ranges is not None else 0

    def end(self, process_id: str) -> None:
        """Mark a process as ended: it is the first to be forgotten when there are too many."""
        with self._lock:
            ranges = self._live.pop(process_id, None)
            if ranges is not None:
                self._ended[process_id] = ranges

    def snapshot(self, process_ids: Iterable[str] | None = None) -> list[LedgerEntry]:
        """Return what is known, of all processes or of some, to be saved and given to `restore`."""
        with self._lock:
            if process_ids is None:
                process_ids = [*self._ended, *self._live]
            found = ((name, self._live.get(name) or self._ended.get(name)) for name in process_ids)
            return [ranges.entry(name) for name, ranges in found if ranges is not None]

    def restore(self, entries: Iterable[LedgerEntry]) -> None:
        """Take over what an earlier ledger knew; what both know of a process is joined."""
        with self._lock:
            for entry in entries:
                ranges = self._ranges(entry.process_id)
                ranges.add_range(1, entry.low_water)
                for first, last in entry.above:
                    ranges.add_range(first, last)

    def __len__(self) -> int:
        with self._lock:
            return len(self._live) + len(self._ended)

    def _ranges(self, process_id: str) -> _Ranges:
        ranges = self._live.get(process_id)
        if ranges is not None:
            self._live.move_to_end(process_id)
            return ranges
        ranges = self._ended.get(process_id)
        if ranges is not None:
            return ranges
        ranges = self._live[process_id] = _Ranges()
        if len(self._live) + len(self._ended) > self._max_processes:
            (self._ended or self._live).popitem(last=False)
        return ranges


class _Ranges:
    """A set of positive integers as ascending ranges that do not touch."""

    __slots__ = ("ends", "starts")

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.ends: list[int] = []

    @property
    def low_water(self) -> int:
        return self.ends[0] if self.starts and self.starts[0] == 1 else 0

    def entry(self, process_id: str) -> LedgerEntry:
        ranges = tuple(zip(self.starts, self.ends, strict=True))
        low_water = self.low_water
        return LedgerEntry(process_id, low_water, ranges[1:] if low_water else ranges)

    def add(self, number: int) -> bool:
        at = bisect_right(self.starts, number)
        if at and number <= self.ends[at - 1]:
            return False
        self.add_range(number, number)
        return True

    def add_range(self, first: int, last: int) -> None:
        if last < first:
            return
        # The ranges from `low` up to `high` touch the new one and melt into it.
        low = bisect_right(self.starts, first)
        if low and self.ends[low - 1] >= first - 1:
            low -= 1
        high = bisect_right(self.starts, last + 1)
        if low < high:
            first = min(first, self.starts[low])
            last = max(last, self.ends[high - 1])
        self.starts[low:high] = [first]
        self.ends[low:high] = [last]

    def remove(self, number: int) -> None:
        at = bisect_right(self.starts, number) - 1
        if at < 0 or number > self.ends[at]:
            return
        pieces = [(self.starts[at], number - 1), (number + 1, self.ends[at])]
        kept = [(first, last) for first, last in pieces if first <= last]
        self.starts[at : at + 1] = [first for first, _ in kept]
        self.ends[at : at + 1] = [last for _, last in kept]

    def close_oldest_gap(self) -> int:
        """Fill the lowest gap, and tell how many batches are missing there; numbers of our own are none."""
        if self.starts[0] != 1:
            above = self.starts[0]
            missing = above - 1
            self.starts[0] = 1
        else:
            above = self.starts[1]
            missing = above - self.ends[0] - 1
            del self.starts[1], self.ends[0]
        return 0 if is_assigned(above) else missing
