"""The parts of the query routes that only the page uses."""

import time

import pytest

from rl_insight.transport.ingest_client import CONTENT_TYPE


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
def test_an_origin_that_is_not_a_time_is_refused(filled, origin):
    assert timeline(filled, origin_ns=origin).status_code in {400, 422}


def test_blocks_say_their_step_only_when_asked(filled):
    assert timeline(filled).json()["step"] is None
    assert timeline(filled, steps=True).json()["step"] == [None]


def test_the_flame_has_the_scope_of_hotspots(filled):
    flame = filled.get("/api/v1/hotspots/flame", params={"run": "r1"}).json()
    (root,) = flame["roots"]
    assert (flame["spans"], flame["left_out"]) == (3, 0)
    assert [(node["name"], node["count"]) for node in root["children"]] == [("work", 3)]
    assert filled.get("/api/v1/hotspots/flame", params={"run": "r1", "step": 7}).json()["roots"] == []


@pytest.mark.parametrize("route", ["hotspots", "hotspots/flame"])
def test_an_empty_window_is_refused_with_a_sentence(filled, route):
    answer = filled.get(f"/api/v1/{route}", params={"run": "r1", "start_ns": 9, "end_ns": 9})
    assert answer.status_code == 400
    assert "it must end after it begins" in answer.json()["error"]


def test_an_unknown_detail_of_sessions_is_refused(filled):
    assert filled.get("/api/v1/sessions", params={"run": "r1", "detail": "brief"}).status_code == 200
    assert filled.get("/api/v1/sessions", params={"run": "r1", "detail": "less"}).status_code == 422
