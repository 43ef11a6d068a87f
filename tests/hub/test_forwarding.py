"""A forwarding transport: its listeners also listen to the transport behind it."""

import pytest

from rl_insight.collector import Collector
from rl_insight.hub.forwarding import ForwardingTransport
from rl_insight.transport import MemoryTransport, Transport

HANDLERS = [name for name in vars(Transport) if name.startswith("on_")]


@pytest.mark.parametrize("name", HANDLERS)
def test_what_happens_behind_is_reported_to_the_owner(name):
    onward = MemoryTransport()
    transport = ForwardingTransport(Collector(), onward)
    heard = []
    setattr(transport, name, lambda *told: heard.append(told))
    getattr(onward, name)()
    getattr(transport, name)()
    transport.close()
    assert heard == [(), ()]


class Behind(MemoryTransport):
    """A transport with a distinct result for every method."""

    max_batch_bytes = 4321
    server_url = "http://127.0.0.1:1"
    leads_steps = follows_steps = True

    def __init__(self):
        super().__init__()
        self.told = []

    def hear_others(self, timeout_s):
        return 3

    def tell_step(self, mark):
        self.told.append(mark)

    def ask_steps(self):
        return [(5, 6)]


def test_steps_others_and_the_server_are_those_of_the_transport_behind():
    transport = ForwardingTransport(Collector(), behind := Behind())
    for name in ("max_batch_bytes", "server_url", "leads_steps", "follows_steps"):
        assert getattr(transport, name) == getattr(behind, name)
    transport.tell_step((7, 1))
    assert (transport.hear_others(1.0), transport.ask_steps(), behind.told) == (3, [(5, 6)], [(7, 1)])
    transport.close()
    # Nothing else is left to what every transport has.
    own = {name for name in vars(Transport) if not name.startswith(("_", "on_"))}
    assert own <= {*vars(ForwardingTransport), *vars(transport)}
