"""Lanes: one state at a time, as a person would draw it."""

from __future__ import annotations

import threading
from types import TracebackType

from rl_insight.recorder.context import current_span
from rl_insight.recorder.spans import STATE_INTERVAL, STATE_NESTED, Span


class Lanes:
    """The states that run now on each lane of this process.

    Entries of the same name share one interval. A different name on a busy lane becomes a child of the running state.
    The lock is held for a few dictionary operations, never across I/O.
    """

    __slots__ = ("acquire", "nested", "release", "running")

    def __init__(self) -> None:
        lock = threading.Lock()
        self.acquire = lock.acquire
        self.release = lock.release
        self.running: dict[str | None, State] = {}
        """The state that a lane shows."""
        self.nested: dict[tuple[str | None, str], State] = {}
        """States that began while their lane showed another one; they may outlast it."""

    def after_fork(self) -> None:
        """Replace the lock, which a thread that `fork` did not copy may have held."""
        lock = threading.Lock()
        self.acquire = lock.acquire
        self.release = lock.release

    def find(self, lane: str | None, name: str) -> State | None:
        """Return the open interval of a state, if there is one."""
        running = self.running.get(lane)
        if running is not None and running.name == name:
            return running
        return self.nested.get((lane, name)) if self.nested else None


class State(Span):
    """One entry into a state, as a context manager.

    The first entry is the interval itself; a later one of the same name joins it and records nothing of its own.
    The lock is taken by its methods: `with` costs 90 ns more.
    """

    __slots__ = ("_entries", "_interval", "_lane_key")

    _entries: int
    _interval: State
    _lane_key: str | None

    def __enter__(self) -> State:
        if self.end:  # the same object once more: what it recorded may still wait in the buffer
            again = State(self._recorder, self.name, self.attributes, STATE_INTERVAL, self._lane_key)
            again.__enter__()
            self._interval, self._token = again._interval, again._token
            return self._interval
        lanes = self._recorder.lanes
        self._lane_key = lane = self.lane
        lanes.acquire()
        try:
            running = lanes.running.get(lane)
            interval = None if running is None and not lanes.nested else lanes.find(lane, self.name)
            if interval is not None:
                interval._entries += 1
            elif running is None:
                self.begin(current_span.get())
                self.lane = lane  # a state stays on its own lane, whatever lane its parent is on
                lanes.running[lane] = interval = self
                self._entries = 1
            else:
                self.segment = STATE_NESTED
                self.begin(running)
                lanes.nested[lane, self.name] = interval = self
                self._entries = 1
        finally:
            lanes.release()
        self._interval = interval
        self._token = current_span.set(interval)
        return interval

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close one entry; the interval ends with its last one and fails if any of its entries failed."""
        try:
            token = self._token
            del self._token
        except AttributeError:  # left already
            return
        lanes = self._recorder.lanes
        interval = self._interval
        lanes.acquire()
        try:
            if kind is not None:
                interval.fail(kind)
            interval._entries -= 1
            if not interval._entries:
                interval.end = self._recorder.now()
                if lanes.running.get(interval._lane_key) is interval:
                    del lanes.running[interval._lane_key]
                else:
                    del lanes.nested[interval._lane_key, interval.name]
        finally:
            lanes.release()
        try:
            current_span.reset(token)
        except ValueError:  # noqa: SIM105  # left in another context than it was entered: nothing to reset
            pass
