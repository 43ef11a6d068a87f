"""The contract of `rl_insight.transport.base.Transport`, checked against every implementation."""

from __future__ import annotations

import json
import os
import threading
import warnings

import pytest

from rl_insight.transport import FileTransport, HttpTransport, MemoryTransport, read_batches


class Case:
    """One implementation: how to create it, and how to read what it delivered."""

    def __init__(self, helpers, tmp_path):
        self.helpers = helpers
        self.tmp_path = tmp_path
        self.losses = []
        self.transport = self.make()
        self.transport.on_loss = lambda *loss: self.losses.append(loss)

    def send(self, *sequences, text="hello"):
        for sequence in sequences:
            self.transport.send(self.helpers.make_batch(sequence, text=text))

    def stop(self):
        self.transport.close()


class MemoryCase(Case):
    def make(self):
        return MemoryTransport()

    def delivered(self):
        return sorted(batch.sequence for batch in self.transport.batches)


class FileCase(Case):
    def make(self):
        return FileTransport(self.tmp_path / "events", "node7-1-aa", rotate_bytes=500)

    def delivered(self):
        return sorted(batch.sequence for batch in read_batches(self.tmp_path / "events"))


class HttpCase(Case):
    def make(self):
        self.receiver = self.helpers.Receiver()
        return HttpTransport(self.receiver.url, process_id="node7-1-aa", spool_dir=self.tmp_path / "spool")

    def delivered(self):
        return self.receiver.sequences

    def stop(self):
        super().stop()
        self.receiver.stop()


@pytest.fixture(params=[MemoryCase, FileCase, HttpCase], ids=["memory", "file", "http"])
def case(request, transport_helpers, tmp_path):
    case = request.param(transport_helpers, tmp_path)
    yield case
    case.stop()


def test_everything_sent_arrives_once(case):
    case.send(*range(1, 51))
    assert case.transport.flush(20)
    assert case.delivered() == list(range(1, 51))
    assert case.losses == []


def test_equal_sequences_of_several_processes_all_arrive(case):
    for process_id in ("a", "b", "c"):
        case.transport.send(case.helpers.make_batch(1, process_id))
    assert case.transport.flush(20)
    assert case.delivered() == [1, 1, 1]


def test_batches_arrive_whole(case):
    text = "é\u0000" + "x" * 2_000_000
    case.send(1, text=text)
    assert case.transport.flush(20)
    assert case.delivered() == [1]


def test_flush_of_an_idle_transport_succeeds_at_once(case):
    assert case.transport.flush(0.0)


def test_delivered_batches_are_reported_by_the_status(case):
    case.send(1, 2, 3)
    assert case.transport.flush(20)
    status = case.transport.get_status()
    assert status["delivered_batches"] == 3
    assert json.loads(json.dumps(status)) == status


def test_close_can_be_called_again_and_by_several_threads(case):
    case.send(1)
    assert case.transport.flush(20)
    closers = [threading.Thread(target=case.transport.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(20)
    assert not any(closer.is_alive() for closer in closers)
    case.transport.close()
    assert case.delivered() == [1]


def test_send_after_close_is_counted_and_does_not_raise(case):
    case.transport.close()
    case.send(1)
    assert case.losses == [("batches", "closed", 1)]


def test_loss_handler_may_use_the_transport(case):
    seen = []
    case.transport.on_loss = lambda *_loss: seen.append(case.transport.get_status())
    case.transport.close()
    case.send(1)
    assert len(seen) == 1


def test_forked_child_abandons_without_touching_the_parent(case):
    case.send(1)
    assert case.transport.flush(20)
    with warnings.catch_warnings():
        # Forking a process that has threads is what this test is about.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            case.transport.abandon()
            case.transport.send(b"the child has a transport of its own")
            case.transport.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    case.send(2)
    assert case.transport.flush(20)
    assert case.delivered() == [1, 2]
    assert case.losses == []
