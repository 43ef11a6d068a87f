"""Fetches many metrics pages concurrently, on the calling thread.

The monitor's budget is 25 ms of CPU time for 64 nodes. Fetching their pages, 65 kB each, takes 6.5 ms with sockets and
one selector, and 22 ms with `rl_insight.http_client` on 16 threads.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec

from rl_insight.urls import host_and_port

MAX_PAGE_BYTES = 64 * 1024 * 1024
_MAX_OPEN = 64
_CHECK_STOP_S = 0.05
_TURN_S = 0.002
"""The pause between polls: more connections are ready at each poll, so fewer polls are needed."""
_PIECE_BYTES = 65_536
_IN_PROGRESS = frozenset({0, 115, 36, 10035})
"""What `connect_ex` may return for a connection in progress: EINPROGRESS of Linux, macOS and Windows."""


class PageAddress(msgspec.Struct, frozen=True):
    """A page that is fetched over plain HTTP."""

    host: str
    port: int
    path: str = "/metrics"

    @property
    def address(self) -> str:
        """Host and port as in a URL."""
        return host_and_port(self.host, self.port)


class PageError(Exception):
    """A page could not be fetched; the message says why."""


def fetch_all(
    targets: Iterable[PageAddress], *, timeout_s: float, stop: threading.Event, max_open: int = _MAX_OPEN
) -> dict[PageAddress, bytes | PageError]:
    """Fetch pages concurrently, each within `timeout_s`; pages unfinished when `stop` is set are errors."""
    waiting = deque(targets)
    results: dict[PageAddress, bytes | PageError] = {}
    with selectors.DefaultSelector() as selector:
        running = selector.get_map()
        try:
            while (waiting or running) and not stop.is_set():
                while waiting and len(running) < max_open:
                    target = waiting.popleft()
                    try:
                        fetch = _Fetch(target, timeout_s)
                    except (OSError, OverflowError, UnicodeError) as error:
                        results[target] = PageError(str(error))
                        continue
                    selector.register(fetch.socket, selectors.EVENT_WRITE, fetch)
                if running:
                    _advance(selector, results)
                    time.sleep(_TURN_S)
        finally:
            for key in list(running.values()):
                waiting.append(key.data.target)
                _end(key.data, selector)
    return {target: PageError("the monitor was stopped") for target in waiting} | results


def _advance(selector: selectors.BaseSelector, results: dict[PageAddress, bytes | PageError]) -> None:
    for key, _events in selector.select(_CHECK_STOP_S):
        fetch: _Fetch = key.data
        try:
            if fetch.unsent:
                if fetch.send():
                    selector.modify(fetch.socket, selectors.EVENT_READ, fetch)
                continue
            if not fetch.receive():
                continue
            results[fetch.target] = fetch.page()
        except (OSError, PageError) as error:
            results[fetch.target] = error if isinstance(error, PageError) else PageError(str(error))
        _end(fetch, selector)
    now, running = time.monotonic(), selector.get_map()
    # All have the same timeout, so the one that was registered first ends first.
    while running and (fetch := next(iter(running.values())).data).deadline <= now:
        results[fetch.target] = PageError("it did not respond in time")
        _end(fetch, selector)


def _end(fetch: _Fetch, selector: selectors.BaseSelector) -> None:
    selector.unregister(fetch.socket)
    fetch.socket.close()


class _Fetch:
    """One request, in HTTP/1.0: the response ends with the connection and is not chunked."""

    __slots__ = ("deadline", "length", "received", "socket", "target", "unsent")

    def __init__(self, target: PageAddress, timeout_s: float) -> None:
        self.target = target
        self.deadline = time.monotonic() + timeout_s
        self.unsent = (
            f"GET {target.path} HTTP/1.0\r\nHost: {target.address}\r\n"
            "Accept: text/plain;version=0.0.4\r\nConnection: close\r\n\r\n"
        ).encode()
        self.received = bytearray()
        self.length = -1
        family, address = _resolve(target)
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        problem = self.socket.connect_ex(address)
        if problem not in _IN_PROGRESS:
            self.socket.close()
            raise OSError(problem, os.strerror(problem))

    def send(self) -> bool:
        """Send as much as possible; True if everything was sent."""
        problem = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        self.unsent = self.unsent[self.socket.send(self.unsent) :]
        return not self.unsent

    def receive(self) -> bool:
        """Receive what has arrived; True at the end of the response."""
        while True:
            try:
                data = self.socket.recv(_PIECE_BYTES)
            except BlockingIOError:
                return False
            if not self.received:
                self._learn_length(data)
            self.received += data
            if len(self.received) > MAX_PAGE_BYTES:
                raise PageError(f"its page is longer than {MAX_PAGE_BYTES} bytes")
            if not data or len(self.received) == self.length:
                return True
            if len(data) < _PIECE_BYTES and self.length >= 0:
                return False

    def _learn_length(self, data: bytes) -> None:
        """Read the length of the response, if present, so that it is complete before the connection closes."""
        head = data[: max(data.find(b"\r\n\r\n"), 0)]
        length = _headers(head).get(b"content-length", b"")
        if length.isdigit():
            self.length = len(head) + 4 + int(length)

    def page(self) -> bytes:
        """Return the body of the response."""
        length_of_head = self.received.find(b"\r\n\r\n")
        with memoryview(self.received) as received:
            head = bytes(received[: max(length_of_head, 0)])
            body = bytes(received[length_of_head + 4 :])
        words = head.split(b" ", 2)
        if not head.startswith(b"HTTP/1.") or len(words) < 2:
            raise PageError("its response is not HTTP")
        if words[1] != b"200":
            raise PageError(f"it responded with status {words[1].decode('latin-1')}")
        headers = _headers(head)
        if headers.get(b"transfer-encoding", b"").lower() == b"chunked":
            return _joined(body)
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) != len(body):
            raise PageError(f"its page was cut off after {len(body)} of {int(length)} bytes")
        return body


def _resolve(target: PageAddress) -> tuple[int, Any]:
    """Return the address family and the address; an IPv4 address is used directly, which saves 10% of a fetch."""
    try:
        socket.inet_pton(socket.AF_INET, target.host)
    except OSError:
        found = socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICSERV)[0]
        return found[0], found[4]
    return socket.AF_INET, (target.host, target.port)


def _headers(head: bytes) -> dict[bytes, bytes]:
    headers = {}
    for line in head.split(b"\r\n")[1:]:
        name, _colon, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _joined(body: bytes) -> bytes:
    """Join the chunks of a server that sends them even to an HTTP/1.0 client."""
    whole = bytearray()
    while True:
        size_text, separator, rest = body.partition(b"\r\n")
        try:
            size = int(size_text.split(b";")[0], 16)
        except ValueError:
            raise PageError("its chunks cannot be read") from None
        if not separator or len(rest) < size:
            raise PageError("its page was cut off")
        if size == 0:
            return bytes(whole)
        whole += rest[:size]
        body = rest[size + 2 :]
