"""What the query routes do for the page alone."""

import time

import pytest

from rl_insight.transport._http_client import CONTENT_TYPE


@pytest.fixture
def filled(client, make_batch, frames):
    client.post("/api/v1/ingest", content=frames(make_batch(1)), headers={"Content-Type": CONTENT_TYPE})
    return client


def timeline(client, **parameters):
    now = time.time_ns()
    window = {"start_ns": now - 60_000_000_000, "end_ns": now + 60_000_000_000, "run": "r1"}
    return client.get("/api/v1/timeline", params=window | parameters)


def test_times_of_the_timeline_count_from_the_origin_asked_for(filled):
    plain = timeline(filled).json()
    origin = plain["block_start_ns"][0] - 7
    moved = timeline(filled, start_ns=plain["start_ns"], end_ns=plain["end_ns"], origin_ns=origin).json()
    assert moved["block_start_ns"] == [moment - origin for moment in plain["block_start_ns"]]
    assert moved["block_end_ns"] == [moment - origin for moment in plain["block_end_ns"]]
    assert (moved["start_ns"], moved["end_ns"]) == (plain["start_ns"] - origin, plain["end_ns"] - origin)
    assert moved["block_start_ns"][0] == 7
    for same in ("names", "lane_id", "depth", "count", "busy_ns", "span_id", "pixel_ns"):
        assert moved[same] == plain[same]


@pytest.mark.parametrize("origin", ["-1", str(2**62), "x", ""])
def test_an_origin_that_is_no_moment_is_refused(filled, origin):
    assert timeline(filled, origin_ns=origin).status_code in {400, 422}
