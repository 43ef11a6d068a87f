"""A transport that passes batches on: whoever listens to it listens to the transport behind, too."""

import pytest

from rl_insight.collector import Collector
from rl_insight.hub.forwarding import ForwardingTransport
from rl_insight.transport import MemoryTransport, Transport

HANDLERS = [name for name in vars(Transport) if name.startswith("on_")]


@pytest.mark.parametrize("name", HANDLERS)
def test_what_happens_behind_is_told_to_the_owner(name):
    onward = MemoryTransport()
    transport = ForwardingTransport(Collector(), onward)
    heard = []
    setattr(transport, name, lambda *told: heard.append(told))
    getattr(onward, name)()
    getattr(transport, name)()
    transport.close()
    assert heard == [(), ()]
