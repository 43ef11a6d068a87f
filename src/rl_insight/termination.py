"""SIGTERM in `multiprocessing` children: they deliver what they recorded before it ends them.

`Pool.__exit__` terminates its workers as soon as it has their results, and SIGTERM runs no exit handler. A thread
delivers, because the main thread may hold any lock when the signal interrupts it, or be inside a C call that does not
return: such a process is killed after a bounded time.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

LONGEST_S = 1.0
"""For delivery; then the process ends, whatever could be done."""

_POLL_S = 0.01
_MARK = bytes([signal.SIGTERM])


class _Watch:
    """Waits for SIGTERM in a thread. The signal number comes through a pipe, which Python writes to in C."""

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
            # A program that handles SIGTERM itself since then decides about its end.
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
        """Let the thread deliver, then end this process as SIGTERM would have done."""
        os.write(self.ends[1], _MARK)  # in case another library has taken over Python's own pipe
        if self._is_delivering() and not self._delivered.is_set():
            return  # what the signal interrupted may be the delivery itself: the thread signals again after it
        self._delivered.wait(LONGEST_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


_watch: _Watch | None = None


def deliver_before_termination(deliver: Callable[[], None], is_delivering: Callable[[], bool]) -> None:
    """Have `deliver` called before SIGTERM ends this process, within `LONGEST_S`.

    A delivery that the program has begun itself, as `is_delivering` says, is waited for.

    Does nothing where the program handles SIGTERM or watches signals itself, or outside the main thread.
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
    """Keep SIGTERM back during a fork: a child must not write to its parent's pipe."""
    if _watch is not None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release_signal() -> None:
    if _watch is not None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _forget_in_child() -> None:
    """Give up in a forked child what it inherited."""
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
    os.register_at_fork(before=_hold_signal, after_in_parent=_release_signal, after_in_child=_forget_in_child)
