"""Stacks of threads and tasks are read from another thread, with the span and session of each task."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import threading

from rl_insight.recorder import dumps
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


LEFT_ALONE = """
import faulthandler, os, signal, sys
from rl_insight.recorder import dumps
faulthandler.register(dumps.SIGNAL, file=sys.stderr)  # something else uses the signal
dump = dumps.open_dump("trainer-0")
dump.close()
os.kill(os.getpid(), dumps.SIGNAL)  # would end the process, had its handler been taken away
print("alive")
"""


def test_a_signal_that_something_else_handles_is_left_to_it(tmp_path):
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LEFT_ALONE], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == "alive\n"
    assert "most recent call first" in done.stderr


def test_a_process_that_does_not_expect_the_signal_is_not_sent_it(tmp_path, monkeypatch):
    """The signal's default action ends the process: a reused pid must not kill another process."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = dumps.open_dump("trainer-0")
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True)
    try:
        path = next(tmp_path.rglob("*.stacks"))
        path.write_text(f"{bystander.pid} 0\n")  # as after the process of the file was killed
        monkeypatch.setattr(dumps.shutil, "which", lambda _program: None)
        assert dumps.dump_of("trainer-0") is None
        assert bystander.poll() is None
    finally:
        bystander.communicate("\n")
        own.close()
    assert bystander.returncode == 0


def test_files_of_processes_that_were_killed_are_cleared_away(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    own = dumps.open_dump("trainer-0")
    folder = next(tmp_path.rglob("*.stacks")).parent
    (folder / "killed.stacks").write_text(f"{int(killed.stdout)} 0\n")
    own.close()
    again = dumps.open_dump("trainer-1")
    assert [path.name for path in folder.iterdir()] == ["trainer-1.stacks"]
    again.close()
    assert list(folder.iterdir()) == []
