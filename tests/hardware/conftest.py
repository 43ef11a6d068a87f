from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from rl_insight.monitor import Monitor
from rl_insight.schema.records import SampleRecord, records


def _load_helpers():
    name = "hardware_test_helpers"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / "helpers.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def helpers():
    """The module `tests/hardware/helpers.py`."""
    return _load_helpers()


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
