"""Reads the stacks of this process's threads and asyncio tasks, from RL-Insight's own thread."""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextvars import Context
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rl_insight.recorder.context import current_session_id, current_span
from rl_insight.recorder.dumps import MAX_FRAMES, MAX_THREADS, DumpFile, dump_of, shown_frame
from rl_insight.recorder.losses import short_text
from rl_insight.schema import BatchBuilder
from rl_insight.schema.stacks import STACKS_EVENT, Stack, Stacks

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("rl_insight")

EVERY_S: Final = 60.0
MAX_TASKS: Final = 256
_OWN_THREADS: Final = "rl-insight-"
_AWAITED: Final = (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom"))


class StackAnswers:
    """Handles requests for stacks; `request` may be called from any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._is_wanted = False
        self._answered: float | None = None
        self._of_others: deque[Stacks] = deque()
        self.dump: DumpFile | None = None
        """The file for the stacks if this process cannot respond."""

    def request(self) -> None:
        """Send the stacks with the next flush."""
        self._is_wanted = True

    def request_others(self, process_ids: Collection[str]) -> None:
        """Read the stacks of processes on this host that cannot respond; they are sent with a later flush."""
        # In a thread, as it waits for the other process; a second request for the same process would only come later.
        threading.Thread(
            target=self._read_others, args=(process_ids,), name=f"{_OWN_THREADS}dumps", daemon=True
        ).start()

    def _read_others(self, process_ids: Collection[str]) -> None:
        for process_id in process_ids:
            try:
                stacks = dump_of(process_id)
            except Exception:
                logger.exception("RL-Insight cannot read the stacks of %s.", process_id)
                continue
            if stacks is not None:
                self._of_others.append(msgspec.structs.replace(stacks, process_id=process_id))

    def add_to(self, builder: BatchBuilder, time_ns: int) -> None:
        """Add the stacks to a batch if they were requested."""
        own = self.take()
        found = [] if own is None else [own]
        while self._of_others:
            found.append(self._of_others.popleft())
        for stacks in found:
            text = msgspec.json.encode(stacks).decode()
            builder.add_event(time_ns=time_ns, name=STACKS_EVENT, attributes=text)

    def close(self) -> None:
        """Remove this process's dump file; idempotent."""
        if self.dump is not None:
            self.dump.close()
            self.dump = None

    def take(self) -> Stacks | None:
        """Return the stacks if they were requested, at most once a minute."""
        if not self._is_wanted:
            return None
        self._is_wanted = False
        now = self._clock()
        if self._answered is not None and now - self._answered < EVERY_S:
            return None
        self._answered = now
        return read_stacks()


def read_stacks() -> Stacks:
    """Return the stack of every thread and asyncio task except RL-Insight's own threads."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    main = threading.main_thread().ident
    threads, tasks = [], []
    for ident, frame in sorted(sys._current_frames().items(), key=lambda item: item[0] != main):
        name = names.get(ident, str(ident))
        if name.startswith(_OWN_THREADS):
            continue
        frames = list(_callers(frame))
        threads.append(Stack(name=short_text(name), frames=[_shown(one) for one in frames[:MAX_FRAMES]]))
        loop = _loop_of(frames)
        if loop is not None:
            import asyncio  # already loaded if there is a loop; other programs must not load it because of us

            tasks += [_task_stack(task) for task in asyncio.all_tasks(loop)]
    dropped = max(0, len(threads) - MAX_THREADS) + max(0, len(tasks) - MAX_TASKS)
    return Stacks(stacks=threads[:MAX_THREADS] + tasks[:MAX_TASKS], dropped=dropped)


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _shown(frame: FrameType) -> str:
    code = frame.f_code
    return shown_frame(code.co_name, code.co_filename, frame.f_lineno)


def _loop_of(frames: list[FrameType]) -> asyncio.AbstractEventLoop | None:
    """Return the event loop that a thread runs: asyncio's frames hold it, even for loops written in C."""
    for frame in frames:
        if "asyncio" not in frame.f_code.co_filename:
            continue
        import asyncio  # whose frame this is

        runner = frame.f_locals.get("self")
        for candidate in (runner, getattr(runner, "_loop", None), frame.f_locals.get("loop")):
            if isinstance(candidate, asyncio.AbstractEventLoop):
                return candidate
    return None


def _task_stack(task: asyncio.Task[Any]) -> Stack:
    frames: list[str] = []
    awaited: Any = task.get_coro()
    while awaited is not None and len(frames) < MAX_FRAMES:
        frame_name, next_name = next((names for names in _AWAITED if hasattr(awaited, names[0])), ("", ""))
        if not frame_name:
            break
        frame = getattr(awaited, frame_name)
        if frame is not None:
            frames.append(_shown(frame))
        awaited = getattr(awaited, next_name)
    context = _context_of(task)
    span = None if context is None else context.get(current_span)
    session_id = None if context is None else context.get(current_session_id)
    name = getattr(span, "name", None)
    return Stack(
        name=short_text(task.get_name()),
        kind="task",
        frames=frames[::-1],
        span=None if name is None else short_text(name),
        session_id=None if session_id is None else short_text(session_id),
    )


def _context_of(task: asyncio.Task[Any]) -> Context | None:
    """Return a task's context; before Python 3.12 it is reachable only through the garbage collector."""
    if sys.version_info >= (3, 12):
        return task.get_context()
    return next((found for found in gc.get_referents(task) if isinstance(found, Context)), None)
