"""Start `rl-insight` as a fork of a process that has imported it: 0.2 s of CPU time for a server instead of 1.7 s.

`tests/conftest.py` replaces `subprocess.Popen` with `Popen`. The command `python -m rl_insight.cli ...` then
becomes a process with its own arguments, environment, working directory, files, session, signals and exit code, as
always; only its imports, and its command line and environment in /proc, are those of the zygote. All other commands are
executed as usual, and so is this one in a test that uses the fixture `executed`.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import runpy
import select
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

_COMMAND = [sys.executable, "-m", "rl_insight.cli"]
_IMPORTED = ("rl_insight.cli.app", "rl_insight.server.lifecycle", "rl_insight.reader")
_PLAIN_OPTIONS = {"stdin", "stdout", "stderr", "cwd", "env", "text", "bufsize", "errors", "start_new_session"}
_NUMBER = struct.Struct("!I")

Executed = subprocess.Popen


class Popen(Executed):
    """A `subprocess.Popen` whose process is forked by the zygote if the command is `python -m rl_insight.cli`."""

    def __init__(self, args, *positional, **options):
        self._is_forked = not positional and _can_be_forked(args, options)
        super().__init__(args, *positional, **options)

    def _execute_child(self, args, *details):
        if not self._is_forked:
            super()._execute_child(args, *details)
            return
        _, _, _, _, cwd, env, _, _, _, *files, _, _, _, _, _, new_session = details[:21]
        request = {
            "words": [os.fsdecode(word) for word in args[3:]],
            "directory": os.fspath(cwd or Path.cwd()),
            "variables": dict(os.environ if env is None else env),
            "new_session": new_session,
        }
        self._reports, theirs = socket.socketpair()  # the process id comes here, and then the exit status
        given = [number if file == -1 else file for number, file in enumerate((files[0], files[3], files[5]))]
        with theirs, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(_address())
            socket.send_fds(connection, [b"."], [*given, theirs.fileno()])
            connection.sendall(json.dumps(request).encode())
        (self.pid,) = _NUMBER.unpack(self._reports.recv(_NUMBER.size))
        self._child_created = True
        self._close_pipe_fds(*files)

    def _internal_poll(self, *arguments, **options):
        if self._is_forked:
            options["_waitpid"] = lambda _, flags: self._try_wait(flags)
        return super()._internal_poll(*arguments, **options)

    def _try_wait(self, wait_flags):
        if not self._is_forked:
            return super()._try_wait(wait_flags)
        if wait_flags & os.WNOHANG and not select.select([self._reports], [], [], 0)[0]:
            return 0, 0
        with self._reports:
            return self.pid, *_NUMBER.unpack(self._reports.recv(_NUMBER.size))


def _can_be_forked(args, options):
    if not isinstance(args, list) or args[:3] != _COMMAND or not options.keys() <= _PLAIN_OPTIONS:
        return False
    return _early(options.get("env") or os.environ) == _EARLY


def _early(variables):
    """Return the variables that a Python process reads before any of our code runs."""
    return {name: variables[name] for name in variables if name.startswith(("PYTHON", "LC_", "LANG", "LD_", "TZ"))}


_EARLY = _early(os.environ)


@functools.cache
def _address():
    """Start the zygote of this process, which ends with it; return the address of its socket."""
    folder = tempfile.TemporaryDirectory(prefix="zygote-")
    address = f"{folder.name}/socket"
    zygote = Executed(
        [sys.executable, __file__, address],  # some distributions install a package named `tests`
        cwd=Path(__file__).parents[1],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a fork has one thread, so the zygote must have no more
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert zygote.stdout.read(1), "the zygote did not start"
    atexit.register(folder.cleanup)
    atexit.register(zygote.communicate)
    return address


def _serve(address):
    """Fork a process for each request and report its end; return the request in that process, None at the end."""
    children = {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        os.write(1, b".")
        while True:
            ready = select.select([sys.stdin, listener, *children], [], [])[0]
            for ended in children.keys() & set(ready):
                pid, reports = children.pop(ended)
                os.close(ended)
                with reports, contextlib.suppress(OSError):  # its starter may have ended
                    reports.sendall(_NUMBER.pack(os.waitpid(pid, 0)[1]))
            if sys.stdin in ready:
                return None
            if listener in ready:
                request, reports = _receive(listener)
                if (pid := os.fork()) == 0:
                    reports.close()
                    for descriptor, (_, other) in children.items():
                        os.close(descriptor)
                        other.close()
                    return request
                for file in request["files"]:
                    os.close(file)
                children[os.pidfd_open(pid)] = pid, reports
                reports.sendall(_NUMBER.pack(pid))


def _receive(listener):
    connection, _ = listener.accept()
    with connection:
        _, (*files, reports), _, _ = socket.recv_fds(connection, 1, 4)
        parts = iter(functools.partial(connection.recv, 1 << 16), b"")
        return json.loads(b"".join(parts)) | {"files": files}, socket.socket(fileno=reports)


def _run(request):
    """Turn this process into the requested one."""
    for number, file in enumerate(request["files"]):
        os.dup2(file, number)
        os.close(file)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))
    if request["new_session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["variables"])
    sys.path[0] = request["directory"]
    sys.argv[1:] = request["words"]
    runpy.run_module("rl_insight.cli", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    sys.path[0] = os.getcwd()
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # looking for garbage among the imports would copy their memory in every fork
    atexit.register(gc.unfreeze)  # DuckDB complains about what is left at the end
    if (forked := _serve(sys.argv[1])) is not None:
        _address = functools.partial(str, sys.argv[1])  # `--detach` starts a second process
        subprocess.Popen = Popen
        _run(forked)
