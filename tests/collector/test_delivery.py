"""Requests are retried only while it makes sense."""

from __future__ import annotations

import pytest

from rl_insight.collector.sinks.delivery import DeliveryRefusedError, HttpCarrier, Retries, TryAgainError
from rl_insight.errors import ConfigError, TransportError


@pytest.fixture
def carrier(http_receiver):
    carrier = HttpCarrier(http_receiver.url, headers={}, timeout_s=5.0, is_transient=lambda status: status >= 500)
    yield carrier
    carrier.close()


def test_receiver_that_asks_for_too_much_time_is_given_up_at_once(carrier, http_receiver):
    http_receiver.answers = [(503, {"Retry-After": "3600"}, b"busy")]
    retries = Retries(60.0)
    with pytest.raises(TransportError, match="503 busy"):
        retries.run(lambda: carrier.send(b"x"))
    assert (retries.requests, retries.retries) == (1, 0)


def test_refusal_carries_the_status_and_the_receivers_words(carrier, http_receiver):
    http_receiver.answers = [(404, {}, b"no such\n  place")]
    with pytest.raises(DeliveryRefusedError, match="404 no such place") as error:
        Retries(60.0).run(lambda: carrier.send(b"x"))
    assert error.value.status == 404


def test_answer_without_words_is_reported_by_its_reason(carrier, http_receiver):
    http_receiver.answers = [(403, {}, b"")]
    with pytest.raises(DeliveryRefusedError, match="403 Forbidden"):
        carrier.send(b"x")


def test_connection_that_the_receiver_closed_is_opened_again(carrier, http_receiver):
    http_receiver.answers = [(200, {"Connection": "close"}, b"a"), (200, {}, b"b")]
    assert (carrier.send(b"1"), carrier.send(b"2")) == (b"a", b"b")
    assert http_receiver.requests == [b"1", b"2"]


def test_receiver_that_is_too_slow_counts_as_a_transient_failure(http_receiver):
    http_receiver.may_answer.clear()
    carrier = HttpCarrier(http_receiver.url, headers={}, timeout_s=0.05, is_transient=lambda status: False)
    with pytest.raises(TryAgainError, match="does not answer"):
        carrier.send(b"x")
    carrier.close()


def test_attempt_that_fails_for_another_reason_is_not_repeated():
    attempts = []

    def attempt():
        attempts.append(1)
        raise ConfigError("no")

    with pytest.raises(ConfigError):
        Retries(60.0).run(attempt)
    assert len(attempts) == 1
