from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


def _load_helpers():
    name = "transport_receiver"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("receiver.py"))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture(scope="session")
def helpers():
    """The module `receiver.py`: Receiver, Refusal, make_batch, wait_until."""
    return _load_helpers()


@pytest.fixture
def receiver(helpers):
    receiver = helpers.Receiver()
    yield receiver
    receiver.stop()


@pytest.fixture
def make_transport(receiver, tmp_path):
    """Make HTTP transports to the receiver, with short pauses; they are closed after the test."""
    from rl_insight.transport import HttpTransport

    made = []

    def make(process_id="node7-1-aa", **settings):
        losses = []
        url = settings.pop("url", receiver.url)
        given = {"spool_dir": tmp_path / "spool", "retry_initial_s": 0.01, "retry_max_s": 0.05} | settings
        transport = HttpTransport(url, process_id=process_id, **given)
        transport.on_loss = lambda *loss: losses.append(loss)
        transport.losses = losses
        made.append(transport)
        return transport

    yield make
    for transport in made:
        transport.close()
