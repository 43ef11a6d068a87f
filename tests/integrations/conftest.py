from __future__ import annotations

import struct
import sys
import types

import pytest

from rl_insight.integrations import hooks
from rl_insight.integrations.trackers import Tracker


class ListTracker(Tracker):
    """Stores its input; `gate` blocks it, `error` makes it fail."""

    def __init__(self, name="list"):
        import threading

        self.name = name
        self.rows = []
        self.closed = 0
        self.error = None
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Event()

    def log(self, values, step):
        self.waiting.set()
        self.gate.wait(20)
        if self.error is not None:
            raise self.error
        self.rows.append((dict(values), step))

    def close(self):
        self.closed += 1


@pytest.fixture
def list_tracker():
    return ListTracker


@pytest.fixture
def read_event_file():
    """Read TensorBoard's event files in a folder: (tag, step, value)."""

    def read(folder):
        from tensorboardX.proto import event_pb2

        found = []
        for path in folder.glob("events.*"):
            data = path.read_bytes()
            while data:
                (length,) = struct.unpack_from("<Q", data)
                event = event_pb2.Event.FromString(data[12 : 12 + length])
                found.extend((value.tag, event.step, value.simple_value) for value in event.summary.value)
                data = data[16 + length :]
        return found

    return read


@pytest.fixture
def module(monkeypatch):
    """Create a module from source; it is removed after the test."""
    made_here = []

    def make(name, source):
        made_here.append(name)
        hooks._finder.patches.pop(name, None)
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            part = ".".join(parts[:depth])
            made = types.ModuleType(part)
            made.__path__ = []
            monkeypatch.setitem(sys.modules, part, made)
            if depth > 1:
                setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], made)
        exec(source, made.__dict__)
        return made

    yield make
    for name in made_here:
        hooks._finder.patches.pop(name, None)
