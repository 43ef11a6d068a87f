from __future__ import annotations

import email.utils
import http.client
import time

import pytest

from rl_insight.schema import frame
from rl_insight.transport.ingest_client import IngestClient, retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("999999", 300.0), ("nan", None), ("soon", None), ("", None)],
)
def test_retry_after_in_seconds(value, seconds):
    assert retry_after(value) == seconds


def test_retry_after_as_a_date():
    assert 50 < retry_after(email.utils.formatdate(time.time() + 100, usegmt=True)) <= 100
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0


@pytest.mark.parametrize(("text", "sends"), [("hello", 1), ("x" * 100_000, 2)])
def test_a_small_request_is_sent_at_once(receiver, helpers, monkeypatch, text, sends):
    sent = []
    send = http.client.HTTPConnection.send
    monkeypatch.setattr(http.client.HTTPConnection, "send", lambda self, data: sent.append(data) or send(self, data))
    client = IngestClient(receiver.url, token=None, timeout_s=20)
    for sequence in (1, 2):
        sent.clear()
        assert client.post(frame(helpers.make_batch(sequence, text=text))).status == 200
        assert len(sent) == sends
    client.close()
    assert receiver.sequences == [1, 2]
