"""Stacks of threads and tasks are read from another thread, with the span and session of each task."""

from __future__ import annotations

import asyncio
import threading

from rl_insight.recorder.context import current_session_id
from rl_insight.recorder.stacks import EVERY_S, StackAnswers, read_stacks


def _wait_here(entered: threading.Event, leave: threading.Event) -> None:
    entered.set()
    leave.wait(10)


def test_a_thread_is_found_where_it_waits():
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=_wait_here, args=(entered, leave), name="worker-7")
    thread.start()
    try:
        assert entered.wait(10)
        stacks = read_stacks().stacks
    finally:
        leave.set()
        thread.join()
    assert stacks[0].name == "MainThread"
    (worker,) = [one for one in stacks if one.name == "worker-7"]
    assert any(frame.startswith("_wait_here (tests/recorder/test_stacks.py:") for frame in worker.frames)
    assert "wait" in worker.frames[0]  # the innermost comes first


def test_a_task_is_found_with_its_session_and_where_it_awaits():
    ready, leave = threading.Event(), threading.Event()

    async def call_tool() -> None:
        ready.set()
        while not leave.is_set():  # noqa: ASYNC110  # the flag belongs to another thread
            await asyncio.sleep(0.01)

    async def roll_out() -> None:
        current_session_id.set("session-3")
        await call_tool()

    async def main() -> None:
        await asyncio.create_task(roll_out(), name="rollout-3")

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        assert ready.wait(10)
        stacks = read_stacks().stacks
    finally:
        leave.set()
        thread.join()
    (task,) = [one for one in stacks if one.name == "rollout-3"]
    assert (task.kind, task.session_id) == ("task", "session-3")
    functions = [frame.partition(" ")[0] for frame in task.frames]
    assert functions.index("call_tool") < functions.index("roll_out")


def test_own_threads_are_left_out():
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=_wait_here, args=(entered, leave), name="rl-insight-flusher")
    thread.start()
    try:
        assert entered.wait(10)
        assert "rl-insight-flusher" not in {one.name for one in read_stacks().stacks}
    finally:
        leave.set()
        thread.join()


def test_requests_are_answered_at_most_once_a_minute():
    now = [0.0]
    answers = StackAnswers(clock=lambda: now[0])
    assert answers.take() is None
    answers.request()
    assert answers.take() is not None
    answers.request()
    assert answers.take() is None
    now[0] += EVERY_S
    answers.request()
    assert answers.take() is not None
