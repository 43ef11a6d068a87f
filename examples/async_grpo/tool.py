"""The calculator: a plain HTTP server in a separate process, sometimes slow, rarely failing; and its client.

The client writes the current trace context into the request's headers (`insight.inject`), and the server continues it
(`insight.attach`): its span becomes a child of the rollout's `toolcall`, across the two processes.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import logging
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection

import rl_insight as insight
from examples.async_grpo.agent import ToolError
from examples.async_grpo.pace import Pace
from examples.async_grpo.settings import Links, Settings

logger = logging.getLogger(__name__)

HANGING_CALL = 10
"""With `--hang`: the call that never returns."""
BURST_PERIOD, BURST_LENGTH = 60, 25
"""With `--errors`: the length of a cycle in calls, and how many of them fail in a row."""


class ToolClient:
    """Calls the calculator from a rollout worker."""

    def __init__(self, port: int, timeout_s: float | None) -> None:
        self._port = port
        self._timeout_s = timeout_s

    async def evaluate(self, expression: str) -> int:
        """Return the value of an expression; raises `ToolError`."""
        started = time.perf_counter()
        try:
            # A thread, because http.client blocks. `to_thread` propagates the trace context.
            return await asyncio.to_thread(self._request, expression)
        except TimeoutError as error:
            raise ToolError("timeout") from error
        except (OSError, http.client.HTTPException) as error:
            raise ToolError("connection") from error
        finally:
            insight.metric_histogram("tool_latency_seconds", time.perf_counter() - started, tool="calculator")

    def _request(self, expression: str) -> int:
        headers = dict(insight.inject({"content-type": "application/json"}))
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=self._timeout_s)
        try:
            connection.request("POST", "/evaluate", json.dumps({"expression": expression}), headers)
            response = connection.getresponse()
            body = response.read()
        finally:
            connection.close()
        if response.status != http.HTTPStatus.OK:
            raise ToolError(f"http_{response.status}")
        return int(json.loads(body)["value"])


def evaluate(expression: str) -> int:
    """Calculate.

    >>> evaluate("3+4"), evaluate("7*8")
    (7, 56)
    """
    if "+" in expression:
        left, right = expression.split("+")
        return int(left) + int(right)
    left, right = expression.split("*")
    return int(left) * int(right)


class ToolServer(ThreadingHTTPServer):
    """The calculator's server, with its simulated faults."""

    daemon_threads = True
    request_queue_size = 128  # with the default of 5, a burst of calls waits for a second, or fails

    def __init__(self, settings: Settings, links: Links) -> None:
        super().__init__(("127.0.0.1", 0), ToolHandler)
        self.settings = settings
        self.links = links
        self.pace = Pace(settings.speed)
        self.calls = itertools.count(1)

    def misbehave(self, call: int) -> bool:
        """Wait as long as this call takes; True if it must fail."""
        if self.settings.hang and call == HANGING_CALL:
            logger.info("call %d hangs on purpose", call)
            self.links.stop.wait()
        slow = random.random() < 0.04
        self.pace.sleep(random.uniform(0.8, 1.6) if slow else random.uniform(0.03, 0.12))
        if self.settings.errors and call % BURST_PERIOD >= BURST_PERIOD - BURST_LENGTH:
            return True
        return random.random() < 0.01


class ToolHandler(BaseHTTPRequestHandler):
    """Serves `POST /evaluate`."""

    server: ToolServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:  # the name is http.server's
        """Calculate, inside the caller's trace."""
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        call = next(self.server.calls)
        with (
            insight.attach(dict(self.headers.items())),
            insight.trace_span("tool.evaluate", {"expression": request["expression"], "call": call}) as span,
        ):
            if self.server.misbehave(call):
                logger.warning("calculator is overloaded", extra={"call": call})
                span.set_status("error", "Overloaded")
                self._answer(503, {"error": "overloaded"})
            else:
                self._answer(200, {"value": evaluate(request["expression"])})
        insight.metric_count("tool_requests", tool="calculator")

    def _answer(self, status: int, content: dict[str, object]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the name is http.server's
        """Print nothing: every request is a span."""


def run_tool_server(settings: Settings, links: Links, _rank: int, port: Connection) -> None:
    """Serve until the run stops; the port is reported through a pipe."""
    random.seed(settings.seed)
    with ToolServer(settings, links) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        port.send(server.server_address[1])
        links.stop_services.wait()
        server.shutdown()
