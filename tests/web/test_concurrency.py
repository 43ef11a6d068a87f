"""Concurrent work of one lane on the timeline: nothing is hidden, and everything can be selected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

pytestmark = pytest.mark.xdist_group("web")

SESSIONS = 12


@pytest.fixture(scope="module")
def recorded(server):
    """Record one step of twelve concurrent sessions, on the default lane of sessions."""
    script = Path(__file__).parent / "produce.py"
    command = [sys.executable, str(script), "--server", server.url, "--experiment", "together", "--run-id", "together"]
    subprocess.run([*command, "--steps", "1", "--sessions", str(SESSIONS)], check=True, timeout=60)
    return "together"


def test_every_concurrent_session_can_be_picked(page, server, recorded):
    page.goto(f"/?view=timeline&run={recorded}")
    canvas = page.locator(".timeline-canvas")
    canvas.wait_for()
    page.wait_for_timeout(1500)
    box = canvas.bounding_box()
    picked = set()
    # All sessions begin together: down one column of pixels near their beginning, each of them has a line.
    for y in range(60, int(box["height"]) - 4, 4):
        page.mouse.click(box["x"] + 148 + 30, box["y"] + y)
        picked.add(page.evaluate("new URLSearchParams(location.search).get('span')"))
    with urlopen(f"{server.url}/api/v1/spans?run={recorded}&name=session") as answer:
        sessions = {span["span_id"] for span in json.load(answer)}
    assert len(sessions) == SESSIONS
    assert sessions <= picked
