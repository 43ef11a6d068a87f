"""Stacks of a process that cannot respond because C code holds its GIL.

Such a process runs no Python, including its flusher. `faulthandler` needs neither the GIL nor a thread of the process:
on a signal it writes the stacks of all threads to a file opened beforehand. Another process on the same host sends the
signal and reads the file; processes without such a file are read with py-spy, if it is installed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path, PurePath
from typing import Any, Final

import msgspec

from rl_insight.config.paths import file_name, user_folder
from rl_insight.schema.stacks import Stack, Stacks

SIGNAL: Final = signal.SIGRTMIN + 12 if sys.platform == "linux" else None
"""A signal that nothing else uses; a process that already handles it is left alone."""
_FOLDER: Final = "stacks"
_SUFFIX: Final = ".stacks"
_WAIT_S: Final = 2.0
_POLL_S: Final = 0.02
_PY_SPY_S: Final = 10.0
_SHOWN_PARTS: Final = 3
MAX_FRAMES: Final = 40
MAX_THREADS: Final = 64
_THREAD: Final = re.compile(r"^(?:Current thread|Thread) 0x([0-9a-f]+)")
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')
_OWN: Final = (str(PurePath(__file__).parents[1]), str(PurePath(threading.__file__)))


class DumpFile:
    """The file to which the stacks of this process are written on a signal; costs nothing until then."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pid = os.getpid()
        self._file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
        os.write(self._file, f"{self._pid} {threading.main_thread().ident or 0:x}\n".encode())
        self._is_registered = _take_signal(self._file)

    def close(self) -> None:
        """Remove the file; a forked child leaves its parent's alone."""
        if self._file < 0 or self._pid != os.getpid():
            return
        if self._is_registered:
            _release_signal()
        os.close(self._file)
        self._file = -1
        self._path.unlink(missing_ok=True)


_is_ours = False
"""Whether this process, or the one it was forked from, handles the signal for RL-Insight."""


def _take_signal(file: int) -> bool:
    """Write stacks to a file on the signal, unless something else in this process handles it."""
    global _is_ours  # noqa: PLW0603  # the handler is also per process
    if SIGNAL is None or (_catches_signal(os.getpid()) and not _is_ours):
        return False
    faulthandler.register(SIGNAL, file=file, all_threads=True)
    _is_ours = True
    return True


def _release_signal() -> None:
    global _is_ours  # noqa: PLW0603
    if SIGNAL is not None:
        faulthandler.unregister(SIGNAL)
    _is_ours = False


def open_dump(process_id: str) -> DumpFile | None:
    """Create the dump file of this process; None if there is no place for it."""
    folder = _folder()
    if folder is None or SIGNAL is None:
        return None
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        _remove_stale(folder)
        return DumpFile(_path(folder, process_id))
    except OSError:  # training continues without a dump file
        return None


def dump_of(process_id: str) -> Stacks | None:
    """Return the stacks of another process of this host and user; None if it cannot be signaled."""
    folder = _folder()
    return None if folder is None else _request_dump(_path(folder, process_id))


def dump_of_pid(pid: int) -> Stacks | None:
    """Return the stacks of a process by its pid, whether it records anything or not."""
    folder = _folder()
    for path in [] if folder is None else folder.glob(f"*{_SUFFIX}"):
        header = _header(path)
        if header is not None and header[0] == pid:
            return _request_dump(path)
    return _py_spy(pid)


def _folder() -> Path | None:
    home = user_folder()
    return None if home is None else home / _FOLDER


def _path(folder: Path, process_id: str) -> Path:
    return folder / (file_name(process_id)[:200] + _SUFFIX)


def _header(path: Path) -> tuple[int, str] | None:
    try:
        with path.open() as file:
            pid, main = file.readline().split()
            return int(pid), main
    except (OSError, ValueError):
        return None


def _remove_stale(folder: Path) -> None:
    """Remove the files of processes that were killed."""
    for path in folder.glob(f"*{_SUFFIX}"):
        header = _header(path)
        if header is None or not Path(f"/proc/{header[0]}").exists():
            path.unlink(missing_ok=True)


def _request_dump(path: Path) -> Stacks | None:
    header = _header(path)
    if header is None:
        return None
    pid, main = header
    before = path.stat().st_size
    if not _send_signal(pid):
        return _py_spy(pid)
    deadline = time.monotonic() + _WAIT_S
    size = before
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        last, size = size, path.stat().st_size
        if size == last > before:
            break
    with path.open("rb") as file:
        file.seek(before)
        return read_dump(file.read(size - before).decode(errors="replace"), main)


def _send_signal(pid: int) -> bool:
    """Signal a process if it handles the signal, which would kill any other process."""
    if SIGNAL is None:
        return False
    try:
        handle = os.pidfd_open(pid)  # from here on the pid cannot be reused
    except OSError:
        return False
    try:
        if not _catches_signal(pid):
            return False
        signal.pidfd_send_signal(handle, SIGNAL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _catches_signal(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    caught = re.search(r"^SigCgt:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return caught is not None and SIGNAL is not None and bool(int(caught[1], 16) >> (SIGNAL - 1) & 1)


def read_dump(text: str, main: str = "") -> Stacks | None:
    r"""Return the stacks that `faulthandler` wrote, main thread first; None if there are none.

    >>> read_dump('Thread 0x1f (most recent call first):\n  File "/a/b/c/d.py", line 7 in f\n', "1f").stacks
    [Stack(name='MainThread', kind='thread', frames=['f (b/c/d.py:7)'], span=None, session_id=None)]
    """
    threads: dict[str, list[tuple[str, str]]] = {}
    frames: list[tuple[str, str]] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            frames = threads.setdefault(thread[1].lstrip("0"), [])
        elif frame := _FRAME.match(line):
            frames.append((frame[1], shown_frame(frame[3], frame[1], int(frame[2]))))
    ordered = sorted(threads.items(), key=lambda item: item[0] != main)
    stacks = [
        Stack(name="MainThread" if ident == main else f"0x{ident}", frames=[shown for _, shown in some[:MAX_FRAMES]])
        for ident, some in ordered
        if not _is_own([path for path, _ in some])
    ]
    return Stacks(stacks=stacks[:MAX_THREADS], dropped=max(0, len(stacks) - MAX_THREADS)) if stacks else None


def shown_frame(function: str, path: str, line: int) -> str:
    """Return a frame as displayed, with the last parts of its path."""
    return f"{function} ({'/'.join(PurePath(path).parts[-_SHOWN_PARTS:])}:{line})"


def _is_own(paths: list[str]) -> bool:
    """Return whether a thread belongs to RL-Insight."""
    return all(path.startswith(_OWN) for path in paths) and any(path.startswith(_OWN[0]) for path in paths)


def _py_spy(pid: int) -> Stacks | None:
    """Read the stacks of a process from outside, if py-spy is installed and has permission."""
    program = shutil.which("py-spy")
    if program is None:
        return None
    command = [program, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    with contextlib.suppress(OSError, subprocess.SubprocessError, msgspec.MsgspecError):
        done = subprocess.run(command, capture_output=True, timeout=_PY_SPY_S, check=True)  # noqa: S603
        return Stacks(stacks=[_py_spy_stack(one) for one in msgspec.json.decode(done.stdout, type=list[Any])])
    return None


def _py_spy_stack(thread: dict[str, Any]) -> Stack:
    frames = [shown_frame(one["name"], one["filename"], one["line"]) for one in thread["frames"][:MAX_FRAMES]]
    return Stack(name=thread.get("thread_name") or f"0x{thread['thread_id']:x}", frames=frames)
