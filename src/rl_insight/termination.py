"""Handles SIGTERM in `multiprocessing` children: they deliver recorded events before they exit.

`Pool.__exit__` terminates its workers as soon as it has their results, and SIGTERM runs no exit handlers. Delivery runs
in a thread, because the main thread may hold any lock when the signal interrupts it, or be inside a C call that does
not return: such a process is killed after a bounded time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

LONGEST_S = 1.0
"""Time limit for delivery; then the process exits in any case."""

_POLL_S = 0.01
_MARK = bytes([signal.SIGTERM])


class _Watch:
    """Waits for SIGTERM in a thread. The signal number arrives through a pipe that Python writes to in C."""

    def __init__(
        self, deliver: Callable[[], None], is_delivering: Callable[[], bool], reading: int, writing: int
    ) -> None:
        self._deliver = deliver
        self._is_delivering = is_delivering
        self.ends = (reading, writing)
        self._delivered = threading.Event()
        threading.Thread(target=self._wait, name="rl-insight-termination", daemon=True).start()

    def _wait(self) -> None:
        while numbers := os.read(self.ends[0], 64):
            # A program that has since installed its own SIGTERM handler decides when it exits.
            if _MARK in numbers and signal.getsignal(signal.SIGTERM) == self.handle:
                break
        else:
            return
        deadline = time.monotonic() + LONGEST_S
        try:
            self._deliver()
            while self._is_delivering() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        finally:
            self._delivered.set()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LONGEST_S)
        os.kill(os.getpid(), signal.SIGKILL)

    def handle(self, number: int, _frame: FrameType | None) -> None:
        """Let the thread deliver, then end this process as SIGTERM would have."""
        os.write(self.ends[1], _MARK)  # in case another library has replaced Python's wakeup pipe
        if self._is_delivering() and not self._delivered.is_set():
            return  # the signal may have interrupted the delivery itself: the thread signals again afterwards
        self._delivered.wait(LONGEST_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_watch: _Watch | None = None


def deliver_before_termination(deliver: Callable[[], None], is_delivering: Callable[[], bool]) -> None:
    """Call `deliver` before SIGTERM ends this process, within `LONGEST_S`.

    If `is_delivering`, waits for the delivery that the program has already started.

    Does nothing if the program handles SIGTERM or uses a wakeup descriptor, or outside the main thread.
    """
    global _watch  # noqa: PLW0603  # signals belong to the process
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    taken = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    if taken != -1:
        signal.set_wakeup_fd(taken)
        os.close(reading)
        os.close(writing)
        return
    _watch = _Watch(deliver, is_delivering, reading, writing)
    signal.signal(signal.SIGTERM, _watch.handle)


def _hold_signal() -> None:
    """Block SIGTERM during a fork: a child must not write to its parent's pipe."""
    if _watch is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_signal() -> None:
    if _watch is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _reset_in_child() -> None:
    """Release the inherited handler and pipe in a forked child."""
    global _watch  # noqa: PLW0603
    watch = _watch
    if watch is None:
        return
    if signal.getsignal(signal.SIGTERM) == watch.handle:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if (current := signal.set_wakeup_fd(-1)) not in (-1, watch.ends[1]):
        signal.set_wakeup_fd(current)
    for end in watch.ends:
        os.close(end)
    _release_signal()
    _watch = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_signal, after_in_parent=_release_signal, after_in_child=_reset_in_child)
