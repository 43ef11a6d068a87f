"""Lanes: rows of the timeline, each of which shows one state at a time."""

from __future__ import annotations

import time
from typing import Any

from rl_insight.recorder.context import get_span, reset_span, set_span
from rl_insight.recorder.decorators import decorated
from rl_insight.recorder.spans import Span
from rl_insight.schema.names import NESTED_STATE_SEGMENT, STATE_SEGMENT

_PAUSE_S = 0.000_05


class Lanes:
    """The states that are running on each lane of this process.

    Entries of the same name share one interval. A different name on a busy lane becomes a child of the running state.
    Guarded by a spin lock, held for a few dictionary operations and never across I/O: popping the only item of a list
    acquires it, appending releases it, and both are atomic. A state acquires it twice; a `threading.Lock` would cost
    100 ns more each time.
    """

    __slots__ = ("lock", "nested", "running")

    def __init__(self) -> None:
        self.lock: list[None] = [None]
        """`pop` raises `IndexError` while another thread holds the lock; call `acquire` then."""
        self.running: dict[str | None, State] = {}
        """The state that each lane shows."""
        self.nested: dict[tuple[str | None, str], State] = {}
        """States that began while their lane showed another one, and may outlast it."""

    def after_fork(self) -> None:
        """Release the lock: a thread that does not exist in the child may have held it."""
        self.lock[:] = [None]

    def acquire(self) -> None:
        """Wait for the lock, which other threads hold for microseconds."""
        while True:
            time.sleep(_PAUSE_S)
            try:
                self.lock.pop()
            except IndexError:
                continue
            return

    def find(self, lane: str | None, name: str) -> State | None:
        """Return the open interval of a state, if any."""
        running = self.running.get(lane)
        if running is not None and running.name == name:
            return running
        return self.nested.get((lane, name)) if self.nested else None


class State(Span, gc=False, eq=False):
    """One entry into a state, as a context manager.

    The first entry is the interval itself; a later one of the same name joins it and records nothing.
    """

    _entries: int = 1
    """Open entries into this interval."""
    _joined: State | None = None
    """The interval that this entry joined; None if it began one."""

    def __call__(self, function: Any) -> Any:
        """Decorate a function: each call is an entry into the state."""
        return decorated(function, self._producer, "trace_state", (self.name, self.lane), self.attributes)

    def __enter__(self) -> State:
        if self.end or self._token is not None:  # entered again: the previous interval may still be buffered
            again = State(self._recorder, self.name, self.attributes, STATE_SEGMENT, self.lane)
            self._again += (again,)
            return again.__enter__()
        lanes = self._recorder.lanes
        lock = lanes.lock
        lane = self.lane
        interval = self
        try:
            lock.pop()
        except IndexError:
            lanes.acquire()
        try:
            running = lanes.running.get(lane)
            found = lanes.find(lane, self.name) if running is not None or lanes.nested else None
            if found is not None:
                interval = self._joined = found
                found._entries += 1
            elif running is None:
                self.begin(get_span())
                if self.lane is not lane:  # a state stays on the process's lane, regardless of its parent's
                    self.lane = lane
                lanes.running[lane] = self
            else:
                self.segment = NESTED_STATE_SEGMENT
                self.begin(running)
                lanes.nested[lane, self.name] = self
        finally:
            lock.append(None)
        self._token = set_span(interval)
        return interval

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        """Close one entry; the interval ends with its last entry and fails if any of them failed."""
        if self._again:
            self._pop_again().__exit__(kind, error, traceback)
            return
        token = self._token
        if token is None:  # exited twice
            return
        self._token = None
        interval = self
        if self._joined is not None:
            interval, self._joined = self._joined, None
        recorder = self._recorder
        lanes, now = recorder.lanes, recorder.now
        lock = lanes.lock
        try:
            lock.pop()
        except IndexError:
            lanes.acquire()
        try:
            if kind is not None:
                interval.fail(kind)
            if interval._entries > 1:
                interval._entries -= 1
            else:
                interval.end = now()
                if interval.segment is STATE_SEGMENT:
                    del lanes.running[interval.lane]
                else:
                    del lanes.nested[interval.lane, interval.name]
        finally:
            lock.append(None)
        try:  # noqa: SIM105  # `contextlib.suppress` would cost 400 ns
            reset_span(token)
        except ValueError:  # exited in a different context than it was entered in
            pass
