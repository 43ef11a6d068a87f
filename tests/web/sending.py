"""Sends hand-made batches to the server of the browser tests."""

from __future__ import annotations

import json
import urllib.request

from rl_insight.schema import encode, frame


def send_batches(url, *batches):
    """Send batches to a server, which must accept all of them."""
    request = urllib.request.Request(
        f"{url}/api/v1/ingest",
        data=b"".join(frame(encode(batch)) for batch in batches),
        headers={"Content-Type": "application/vnd.rl-insight.frames"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert json.load(answer)["accepted"] == len(batches)
