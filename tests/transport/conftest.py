from __future__ import annotations

import pytest

from tests.transport import receiver as receiver_module


@pytest.fixture(scope="session")
def helpers():
    """The module `receiver.py`: Receiver, Refusal, make_batch."""
    return receiver_module


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
