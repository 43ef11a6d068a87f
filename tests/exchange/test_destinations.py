"""Batches to a server: at the requested pace, and with the server's message if it refuses."""

import pytest

from rl_insight.exchange.errors import ExchangeError
from rl_insight.exchange.importing.destinations import ServerAnswer, ServerDestination
from rl_insight.schema import BatchBuilder, Process


def batch(sequence, text="x"):
    builder = BatchBuilder()
    builder.add_log(time_ns=1, level=20, message=text)
    return builder.build(Process(process_id="p", run_id="r", host="h", pid=1), sequence=sequence, sent_ns=1)


def test_a_busy_server_is_asked_again_when_it_says():
    answers = [
        ServerAnswer(429, retry_after_s=3.0, error="too much"),
        ServerAnswer(503),
        ServerAnswer(200, accepted=1, duplicates=1),
    ]
    pauses = []
    destination = ServerDestination(lambda _body: answers.pop(0), pauses.append)
    receipt = destination.send([batch(1), batch(2)])
    assert (receipt.new, receipt.duplicates, pauses) == (1, 1, [3.0, 1.0])


def test_what_a_server_refuses_is_reported():
    destination = ServerDestination(lambda _body: ServerAnswer(401, error="the token is wrong."))
    with pytest.raises(ExchangeError, match="the token is wrong"):
        destination.send([batch(1)])


def test_large_batches_go_in_several_requests():
    sizes = []

    def post(body):
        sizes.append(len(body))
        return ServerAnswer(200, accepted=1)

    ServerDestination(post).send([batch(number, f"{number}" * 5_000_000) for number in range(1, 4)])
    assert len(sizes) == 3
