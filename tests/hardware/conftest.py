from __future__ import annotations

import sys

import pytest

from rl_insight.monitor import Monitor
from rl_insight.schema.records import SampleRecord, records
from tests.hardware import helpers as helpers_module


@pytest.fixture(scope="session")
def helpers():
    """The module `tests/hardware/helpers.py`."""
    return helpers_module


@pytest.fixture
def page_server(helpers):
    """Make servers of metrics pages; they are stopped at the end."""
    servers = []

    def make(page=""):
        servers.append(helpers.PageServer(page))
        return servers[-1]

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def fake_nvml(helpers, monkeypatch):
    """Install a fake pynvml without a GPU; returns its factory."""

    def make(*gpus):
        nvml = helpers.FakeNvml(*gpus)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)
        return nvml

    return make


@pytest.fixture
def recording():
    """A separate monitor; calling the fixture returns the samples recorded so far."""
    monitor = Monitor()
    monitor.init(config={"server": {"backend": "memory"}})
    transport = monitor._pipeline.transport

    class Recording:
        def __init__(self):
            self.monitor = monitor

        def samples(self, metric=None):
            assert monitor.flush(10)
            found = [r for batch in transport.batches for r in records(batch) if isinstance(r, SampleRecord)]
            return [sample for sample in found if metric in (None, sample.metric)]

    yield Recording()
    monitor.finish()
