from __future__ import annotations

import struct

import pytest

from rl_insight.integrations.trackers import Tracker


class ListTracker(Tracker):
    """Keeps what it is given; `gate` holds it up, `error` makes it fail."""

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
    """Read TensorBoard's event files of a folder: (tag, step, value)."""

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
