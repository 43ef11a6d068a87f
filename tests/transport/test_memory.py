from __future__ import annotations

import pytest

from rl_insight.transport import MemoryTransport, NullTransport


def test_batches_are_decoded_in_the_order_they_were_sent(helpers):
    transport = MemoryTransport()
    for sequence in (1, 2, 3):
        transport.send(helpers.make_batch(sequence))
    assert [batch.sequence for batch in transport.batches] == [1, 2, 3]


def test_oldest_batch_goes_when_there_are_too_many_and_is_counted(helpers):
    transport = MemoryTransport(max_batches=2)
    losses = []
    transport.on_loss = lambda *loss: losses.append(loss)
    for sequence in (1, 2, 3):
        transport.send(helpers.make_batch(sequence))
    assert [batch.sequence for batch in transport.batches] == [2, 3]
    assert losses == [("batches", "memory_full", 1)]


def test_clear_forgets_the_kept_batches_only(helpers):
    transport = MemoryTransport()
    transport.send(helpers.make_batch(1))
    transport.clear()
    assert transport.batches == []
    assert transport.get_status()["delivered_batches"] == 1


def test_a_memory_transport_without_room_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        MemoryTransport(max_batches=0)


def test_null_transport_takes_everything_and_loses_nothing_by_its_own_count(helpers):
    transport = NullTransport()
    losses = []
    transport.on_loss = lambda *loss: losses.append(loss)
    transport.send(helpers.make_batch(1))
    assert transport.flush(0.0)
    transport.close()
    assert losses == []
