"""The body guard: slow bodies are given up, long ones refused, all others pass unchanged."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from rl_insight.server.counters import ByteBudget
from rl_insight.server.http import body_guard
from rl_insight.server.http.body_guard import SLOWEST_BYTES_PER_S, BodyGuard

PART = bytes(SLOWEST_BYTES_PER_S)


def read_through_guard(parts, *, pause_s=0.0, path="/x", **options):
    """Return the body that an application behind the guard reads."""
    given = []

    async def app(scope, receive, send):
        more = True
        while more:
            message = await receive()
            given.append(message["body"])
            more = message["more_body"]

    waiting = iter(parts)
    left = len(parts)

    async def receive():
        nonlocal left
        await asyncio.sleep(pause_s)
        left -= 1
        return {"type": "http.request", "body": next(waiting), "more_body": left > 0}

    guard = BodyGuard(app, **{"timeout_s": 60.0, "max_bytes": 10**9, "budget": ByteBudget(10**9)} | options)
    asyncio.run(guard({"type": "http", "path": path}, receive, None))
    return b"".join(given)


def test_a_body_passes_unchanged():
    assert read_through_guard([b"one ", b"", b"two"]) == b"one two"


def test_a_body_that_stalls_is_given_up_and_counted():
    slow = []
    with pytest.raises(HTTPException, match="0 bytes came") as error:
        read_through_guard([b"a"], pause_s=60.0, timeout_s=0.01, on_refused=slow.append)
    assert (error.value.status_code, error.value.headers, slow) == (408, {"Connection": "close"}, ["slow"])


def test_a_long_body_may_take_longer_at_a_decent_rate():
    # Five parts with pauses take longer than the timeout, but each part buys a second.
    assert read_through_guard([PART] * 5, pause_s=0.05, timeout_s=0.15) == PART * 5


@pytest.mark.parametrize(("path", "is_taken"), [("/x", False), ("/upload", True)])
def test_a_body_beyond_the_limit_is_refused_where_the_route_has_no_limit_of_its_own(path, is_taken):
    options = {"path": path, "max_bytes": 5, "own_limits": {"/upload"}}
    if is_taken:
        assert read_through_guard([b"abc", b"def"], **options) == b"abcdef"
        return
    with pytest.raises(HTTPException, match="at most 5 bytes") as error:
        read_through_guard([b"abc", b"def"], **options)
    assert error.value.status_code == 413


def test_bodies_of_all_requests_share_one_budget_from_their_first_byte():
    budget, refused = ByteBudget(10), []
    options = {"budget": budget, "on_refused": refused.append}
    with budget.reserve() as other:
        assert other.grow(6)
        assert read_through_guard([b"ab", b"cd"], **options) == b"abcd"
        with pytest.raises(HTTPException, match="in flight") as error:
            read_through_guard([b"abc", b"def"], **options)
        assert read_through_guard([b"abc", b"def"], path="/upload", streamed={"/upload"}, **options) == b"abcdef"
    assert (error.value.status_code, error.value.headers["Retry-After"], refused) == (503, "2", ["overload"])
    assert budget.used == 0


def test_a_body_beyond_the_budget_passes_when_it_is_alone():
    assert read_through_guard([b"abc", b"def"], budget=ByteBudget(4)) == b"abcdef"


def test_a_slow_body_makes_room_when_others_find_none(monkeypatch):
    monkeypatch.setattr(body_guard, "PATIENCE_S", 0.02)
    budget, refused = ByteBudget(10), []
    options = {"budget": budget, "on_refused": refused.append, "pause_s": 0.1}
    with budget.reserve() as other, budget.reserve() as third:
        assert other.grow(6)
        assert read_through_guard([b"ab", b"cd"], **options) == b"abcd"  # as long as nobody waits for room
        assert not third.grow(5)
        with pytest.raises(HTTPException, match="in flight") as error:
            read_through_guard([b"ab", b"cd"], **options)
        assert read_through_guard([b"ab", b"cd"], path="/upload", streamed={"/upload"}, **options) == b"abcd"
    assert (error.value.status_code, error.value.headers["Retry-After"], refused) == (503, "2", ["overload"])


@pytest.mark.parametrize(("parts", "pause_s"), [(50, 0.01), (1, 60.0)], ids=["drips", "stops"])
def test_a_body_that_does_not_end_makes_room_too(monkeypatch, parts, pause_s):
    monkeypatch.setattr(body_guard, "PATIENCE_S", 0.05)
    monkeypatch.setattr(body_guard, "LOOK_EVERY_S", 0.05)
    budget = ByteBudget(100)
    with budget.reserve() as other, budget.reserve() as third:
        assert other.grow(6)
        assert not third.grow(95)
        with pytest.raises(HTTPException, match="in flight"):
            read_through_guard([b"a"] * parts, pause_s=pause_s, budget=budget)
