"""Small requests to the ingest route are served by the protocol itself, with the same behavior."""

import asyncio
import json

import pytest
import uvicorn
from uvicorn.server import ServerState

from rl_insight.schema import frame
from rl_insight.server.app import create_app, protocol_of, secured
from rl_insight.server.http import guarded_protocol
from rl_insight.server.http.quick_requests import LoopCalls
from rl_insight.transport.ingest_client import CONTENT_TYPE

COUNT = "SELECT count(*) FROM spans"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def post(body, *headers, host="127.0.0.1", length=None):
    lines = [f"Host: {host}", f"Content-Type: {CONTENT_TYPE}", f"Content-Length: {length or len(body)}", *headers]
    return b"POST /api/v1/ingest HTTP/1.1\r\n" + "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def read_answer(reader):
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    return int(head[0].split()[1]), headers, json.loads(await reader.readexactly(int(headers["content-length"])))


class Wire:
    """A listening server in this process, and one connection to it."""

    def __init__(self, services):
        self.services = services
        self.tasks = 0
        app = secured(create_app(services), services)

        async def counted(scope, receive, send):
            self.tasks += 1
            await app(scope, receive, send)

        self.state = ServerState()
        self.config = uvicorn.Config(
            counted, http=protocol_of(services, app), loop="none", lifespan="off", log_config=None
        )

    def talk(self, conversation):
        async def run():
            loop = asyncio.get_running_loop()
            self.config.load()
            listener = await loop.create_server(self._protocol, "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2])
            try:
                return await conversation(reader, writer)
            finally:
                writer.close()
                listener.close()

        return asyncio.run(run())

    def ask(self, *parts):
        """Send parts one after another; return as many responses."""

        async def conversation(reader, writer):
            answers = []
            for part in parts:
                writer.write(part)
                answers.append(await read_answer(reader))
            return answers

        return self.talk(conversation)

    def _protocol(self):
        return self.config.http_protocol_class(config=self.config, server_state=self.state, app_state={})


@pytest.fixture
def wire(services):
    return Wire(services)


def test_small_requests_are_stored_and_answered_without_a_task(wire, make_batch, frames, query):
    answers = wire.ask(post(frames(make_batch(1))), post(frames(make_batch(2))), post(frames(make_batch(2))))
    assert [(status, body) for status, _, body in answers] == [
        (200, {"accepted": 1, "duplicates": 0}),
        (200, {"accepted": 1, "duplicates": 0}),
        (200, {"accepted": 0, "duplicates": 1}),
    ]
    assert wire.tasks == 0
    assert query(wire.services, "r1", COUNT) == [(6,)]
    assert (wire.services.inflight.used, wire.services.counters.requests()) == (0, {"native": 3})


def test_quick_answers_have_the_headers_of_the_usual_ones(wire, make_batch, frames):
    (_, quick, _), (_, usual, _) = wire.ask(
        post(frames(make_batch(1))), post(frames(make_batch(2)), "Content-Encoding: identity")
    )
    assert quick == usual
    assert quick["x-content-type-options"] == "nosniff"


def test_a_refused_batch_is_answered_as_usual(wire, make_batch, frames):
    ((status, headers, body),) = wire.ask(post(frame(b"not a batch") + frames(make_batch(1))))
    assert (status, body["refused"], body["accepted"]) == (400, 1, 1)
    assert headers["x-content-type-options"] == "nosniff"


def test_an_unexpected_failure_is_answered(wire, make_batch, frames, monkeypatch):
    def fail(_body):
        raise RuntimeError("unforeseen")

    monkeypatch.setattr(wire.services.ingest, "submit_frames", fail)
    ((status, _, body),) = wire.ask(post(frames(make_batch(1))))
    assert (status, "see the server's log" in body["error"]) == (500, True)
    assert wire.services.inflight.used == 0


@pytest.mark.parametrize(
    "unusual", [{"host": "evil.example"}, {"headers": ["Origin: http://evil.example"]}], ids=["host", "origin"]
)
def test_requests_that_may_not_send_are_refused(wire, make_batch, frames, unusual):
    body = frames(make_batch(1))
    ((status, _, answer),) = wire.ask(post(body, *unusual.get("headers", ()), host=unusual.get("host", "127.0.0.1")))
    assert status == 403, answer


def test_the_token_is_asked_for_on_every_connection(make_services, make_batch, frames):
    wire = Wire(make_services(token="s3cret"))
    (right, *_), (wrong, *_), (none, *_) = wire.ask(
        post(frames(make_batch(1)), "Authorization: Bearer s3cret"),
        post(frames(make_batch(2)), "Authorization: Bearer other"),
        post(frames(make_batch(3))),
    )
    assert (right, wrong, none) == (200, 401, 401)


def test_pipelined_requests_are_answered_in_their_order(wire, make_batch, frames):
    async def conversation(reader, writer):
        writer.write(post(frames(make_batch(1))) + HEALTH + post(frames(make_batch(2))))
        return [(await read_answer(reader))[2] for _ in range(3)]

    assert wire.talk(conversation) == [
        {"accepted": 1, "duplicates": 0},
        {"status": "ok"},
        {"accepted": 1, "duplicates": 0},
    ]


def test_a_body_may_come_in_parts(wire, make_batch, frames):
    async def conversation(reader, writer):
        request = post(frames(make_batch(1)))
        for part in (request[:-100], request[-100:-50], request[-50:]):
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return await read_answer(reader)

    assert wire.talk(conversation)[2] == {"accepted": 1, "duplicates": 0}
    assert wire.tasks == 0


QUICK, NORMAL = [], ["Content-Encoding: identity"]
both_kinds = pytest.mark.parametrize("headers", [QUICK, NORMAL], ids=["quick", "normal"])


@both_kinds
def test_a_body_that_stalls_is_refused_and_counted(make_services, make_batch, frames, headers):
    wire = Wire(make_services(body_timeout_s=0.1))
    body = frames(make_batch(1))
    ((status, given, answer),) = wire.ask(post(body[:-10], *headers, length=len(body)))
    assert (status, given["connection"]) == (408, "close")
    assert "the body did not arrive in time" in answer["error"]
    assert wire.services.counters.refused() == {("http", "slow"): 1}
    assert wire.services.inflight.used == 0


def test_a_long_body_gets_more_time_at_a_decent_rate(monkeypatch, make_services, make_batch, frames):
    # Five parts with pauses take longer than the timeout, but each part buys a second.
    monkeypatch.setattr(guarded_protocol, "LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(guarded_protocol, "SLOWEST_BYTES_PER_S", 1024)
    wire = Wire(make_services(body_timeout_s=0.15))
    body = frames(*(make_batch(number) for number in range(1, 60)))
    assert len(body) > 16 * 1024
    size = len(body) // 5 + 1

    async def conversation(reader, writer):
        head = post(b"", length=len(body))
        for start in range(0, len(body), size):
            writer.write(head + body[start : start + size])
            head = b""
            await asyncio.sleep(0.08)
        return await read_answer(reader)

    assert wire.talk(conversation)[::2] == (200, {"accepted": 59, "duplicates": 0})
    assert wire.services.counters.refused() == {}


@both_kinds
@pytest.mark.parametrize("is_dripping", [True, False], ids=["drips", "stops"])
def test_a_slow_body_makes_room_when_others_find_none(monkeypatch, wire, make_batch, frames, headers, is_dripping):
    monkeypatch.setattr(guarded_protocol, "PATIENCE_S", 0.02)
    monkeypatch.setattr(guarded_protocol, "LOOK_EVERY_S", 0.02)
    inflight = wire.services.inflight

    async def conversation(reader, writer):
        writer.write(post(frames(make_batch(1)), *headers, length=10_000))
        await until(lambda: inflight.used)
        await asyncio.sleep(0.1)
        assert wire.services.counters.refused() == {}  # as long as there is room
        assert not inflight.reserve().grow(wire.services.settings.max_inflight_bytes)
        answer = asyncio.ensure_future(read_answer(reader))
        while is_dripping and not answer.done():
            writer.write(b"a")
            await asyncio.sleep(0.01)
        return await answer

    status, given, answer = wire.talk(conversation)
    assert (status, given["connection"], given["retry-after"]) == (503, "close", "2")
    assert "in flight" in answer["error"]
    assert wire.services.counters.refused() == {("http", "overload"): 1}
    assert inflight.used == 0


def test_an_upload_to_disk_need_not_make_room(monkeypatch, wire):
    monkeypatch.setattr(guarded_protocol, "PATIENCE_S", 0.02)
    monkeypatch.setattr(guarded_protocol, "LOOK_EVERY_S", 0.02)
    inflight = wire.services.inflight

    async def conversation(reader, writer):
        with inflight.reserve() as other, inflight.reserve() as third:
            assert other.grow(1)
            assert not third.grow(wire.services.settings.max_inflight_bytes)
            writer.write(b"POST /api/v1/runs/file HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 3\r\n\r\na")
            await asyncio.sleep(0.1)
            writer.write(b"bc")
            return await read_answer(reader)

    status, _, answer = wire.talk(conversation)
    assert (status, "not a run file" in answer["error"]) == (400, True)


@both_kinds
def test_unexpected_failures_are_answered_on_a_kept_connection(wire, make_batch, frames, monkeypatch, headers):
    good = post(frames(make_batch(1)), *headers)

    async def conversation(reader, writer):
        writer.write(good)
        answers = [await read_answer(reader)]
        monkeypatch.setattr(wire.services.ingest, "submit_frames", lambda _body: 1 / 0)
        writer.write(good)
        return [*answers, await read_answer(reader)]

    (first, *_), (second, _, body) = wire.talk(conversation)
    assert (first, second) == (200, 500)
    assert "see the server's log" in body["error"]


def test_a_client_that_leaves_before_the_end_of_its_body_holds_nothing(wire, make_batch, frames):
    held = []
    wire.services.inflight._move = lambda _held, change: held.append(change) or True

    async def conversation(_reader, writer):
        writer.write(post(frames(make_batch(1)), length=10_000))
        await until(lambda: held)
        writer.close()
        await until(lambda: len(held) > 1)

    wire.talk(conversation)
    assert held == [10_000, -10_000]


async def until(predicate):
    """Wait for an effect of the server in this process."""
    while not predicate():  # noqa: ASYNC110 -- there is no event for it
        await asyncio.sleep(0.001)


def test_without_room_the_usual_way_refuses(make_services, make_batch, frames):
    wire = Wire(make_services(max_inflight_bytes=1024))
    with wire.services.inflight.reserve() as others:
        others.grow(1024)
        ((status, headers, _),) = wire.ask(post(frames(make_batch(1))))
    assert (status, headers["retry-after"]) == (503, "2")


def test_a_call_that_fails_does_not_keep_the_others_from_being_made(caplog):
    made = []

    async def main():
        calls = LoopCalls(asyncio.get_running_loop())
        calls.call(lambda: 1 / 0)
        calls.call(lambda: made.append("the other"))
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert made == ["the other"]
    assert "ZeroDivisionError" in caplog.text
