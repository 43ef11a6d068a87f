from __future__ import annotations

import email.utils
import time

import pytest

from rl_insight.transport.ingest_client import retry_after


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(None, None), ("7", 7.0), ("0.5", 0.5), ("-3", 0.0), ("999999", 300.0), ("nan", None), ("soon", None), ("", None)],
)
def test_retry_after_in_seconds(value, seconds):
    assert retry_after(value) == seconds


def test_retry_after_as_a_date():
    assert 50 < retry_after(email.utils.formatdate(time.time() + 100, usegmt=True)) <= 100
    assert retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
