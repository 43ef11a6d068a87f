"""Lanes: one state at a time, as a person would draw it."""

from __future__ import annotations

import time
from types import TracebackType

from rl_insight.recorder.context import current_span
from rl_insight.recorder.spans import STATE_INTERVAL, STATE_NESTED, Span

_PAUSE_S = 0.000_05


class Lanes:
    """The states that run now on each lane of this process.

    Entries of the same name share one interval. A different name on a busy lane becomes a child of the running state.
    Only the thread that took the turn may change anything here, for a few dictionary operations and never across I/O.
    The turn is the one item of a list, whose `pop` and `append` are atomic: 50 ns, where a lock costs 150.
    """

    __slots__ = ("_turn", "end_turn", "nested", "running", "take_turn")

    def __init__(self) -> None:
        self._turn: list[None] = [None]
        self.take_turn = self._turn.pop
        """Raises `IndexError` when another thread has the turn: then call `wait_for_turn`."""
        self.end_turn = self._turn.append
        self.running: dict[str | None, State] = {}
        """The state that a lane shows."""
        self.nested: dict[tuple[str | None, str], State] = {}
        """States that began while their lane showed another one; they may outlast it."""

    def after_fork(self) -> None:
        """Take back the turn, which a thread that `fork` did not copy may have had."""
        self._turn[:] = [None]

    def wait_for_turn(self) -> None:
        """Take the turn as soon as the other thread has ended it, which is a matter of microseconds."""
        while True:
            time.sleep(_PAUSE_S)
            try:
                self.take_turn()
            except IndexError:
                continue
            return

    def find(self, lane: str | None, name: str) -> State | None:
        """Return the open interval of a state, if there is one."""
        running = self.running.get(lane)
        if running is not None and running.name == name:
            return running
        return self.nested.get((lane, name)) if self.nested else None


class State(Span, gc=False, eq=False):
    """One entry into a state, as a context manager.

    The first entry is the interval itself; a later one of the same name joins it and records nothing of its own.
    """

    _entries: int = 1
    _interval: State | None = None
    """What this entry began or joined, until it is left: an entry that began it refers to itself."""

    def __enter__(self) -> State:
        if self.end:  # the same object once more: what it recorded may still wait in the buffer
            again = State(self._recorder, self.name, self.attributes, STATE_INTERVAL, self.lane)
            entered = again.__enter__()
            self._interval, self._token = again._interval, again._token
            again._interval = again._token = None
            return entered
        lanes = self._recorder.lanes
        lane = self.lane
        try:
            lanes.take_turn()
        except IndexError:
            lanes.wait_for_turn()
        try:
            running = lanes.running.get(lane)
            interval = None if running is None and not lanes.nested else lanes.find(lane, self.name)
            if interval is not None:
                interval._entries += 1
            elif running is None:
                self.begin(current_span.get())
                if lane is None:  # a state stays on its own lane, whatever lane its parent is on
                    self.lane = None
                lanes.running[lane] = interval = self
            else:
                self.segment = STATE_NESTED
                self.begin(running)
                lanes.nested[lane, self.name] = interval = self
        finally:
            lanes.end_turn(None)
        self._interval = interval
        self._token = current_span.set(interval)
        return interval

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close one entry; the interval ends with its last one and fails if any of its entries failed."""
        token, interval = self._token, self._interval
        if token is None or interval is None:  # left already
            return
        self._token = self._interval = None
        lanes = self._recorder.lanes
        try:
            lanes.take_turn()
        except IndexError:
            lanes.wait_for_turn()
        try:
            if kind is not None:
                interval.fail(kind)
            interval._entries -= 1
            if not interval._entries:
                interval.end = self._recorder.now()
                if interval.segment is STATE_INTERVAL:
                    del lanes.running[interval.lane]
                else:
                    del lanes.nested[interval.lane, interval.name]
        finally:
            lanes.end_turn(None)
        try:  # noqa: SIM105  # `contextlib.suppress` would cost 400 ns
            current_span.reset(token)
        except ValueError:  # left in another context than it was entered: nothing to reset
            pass
