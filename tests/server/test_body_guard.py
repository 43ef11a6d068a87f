"""The body guard: long bodies are refused, all others pass unchanged."""

import asyncio

import pytest
from starlette.exceptions import HTTPException

from rl_insight.server.counters import ByteBudget
from rl_insight.server.http.body_guard import BodyGuard


def read_through_guard(parts, *, path="/x", **options):
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
        left -= 1
        return {"type": "http.request", "body": next(waiting), "more_body": left > 0}

    guard = BodyGuard(app, **{"max_bytes": 10**9, "budget": ByteBudget(10**9)} | options)
    asyncio.run(guard({"type": "http", "path": path}, receive, None))
    return b"".join(given)


def test_a_body_passes_unchanged():
    assert read_through_guard([b"one ", b"", b"two"]) == b"one two"


@pytest.mark.parametrize(("path", "is_taken"), [("/x", False), ("/upload", True)])
def test_a_body_beyond_the_limit_is_refused_where_the_route_has_no_limit_of_its_own(path, is_taken):
    options = {"path": path, "max_bytes": 5, "own_limits": {"/upload"}}
    if is_taken:
        assert read_through_guard([b"abc", b"def"], **options) == b"abcdef"
        return
    with pytest.raises(HTTPException, match="the limit is 5 bytes") as error:
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
