"""A small HTTP server for `/metrics`, for collectors without the full server."""

from __future__ import annotations

import errno
import gzip
import logging
import socket
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import BoundedSemaphore, Thread
from typing import Any
from urllib.parse import urlsplit

from rl_insight.urls import host_and_port

logger = logging.getLogger(__name__)

Render = Callable[[str], tuple[bytes, str]]
"""Takes the `Accept` header; returns the body and its content type."""

_MAX_CONNECTIONS = 16
_CONNECTION_TIMEOUT_S = 10.0
_POLL_S = 0.2


class MetricsEndpoint:
    """Serves `/metrics` and `/healthz` on a daemon thread until it is closed.

    If the port is in use, another free one is chosen: see `port`. Beyond 16 concurrent connections, new ones are closed
    immediately.

    Args:
        render: renders the page, usually `Collector.metrics_page`.
        host: the address to listen on.
        port: the preferred port; 0 for any.
    """

    def __init__(self, render: Render, host: str = "127.0.0.1", port: int = 0) -> None:
        self._server = _listen(render, host, port)
        self.host = host
        self.port: int = self._server.server_address[1]
        self._closed = False
        self._thread = Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="rl-insight-metrics-endpoint", daemon=True
        )
        self._thread.start()

    @property
    def address(self) -> str:
        """The address as ``host:port``, for a list of scrape targets."""
        return host_and_port(self.host, self.port)

    @property
    def url(self) -> str:
        """The URL of the metrics."""
        return f"http://{self.address}/metrics"

    def close(self) -> None:
        """Stop listening; idempotent."""
        if self._closed:
            return
        self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _listen(render: Render, host: str, port: int) -> _MetricsServer:
    try:
        return _MetricsServer((host, port), render)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or port == 0:
            raise
    server = _MetricsServer((host, 0), render)
    logger.warning(
        "port %d is in use: metrics are served on port %d instead. Point the scraper there, or choose another port.",
        port,
        server.server_address[1],
    )
    return server


class _MetricsServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 2 * _MAX_CONNECTIONS
    # Sharing a port would silently split the scrapes between two processes.
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], render: Render) -> None:
        self.render = render
        self._connections = BoundedSemaphore(_MAX_CONNECTIONS)
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread could be started: drop the connection, keep the server.
            self._connections.release()
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 -- signature of the base class
        logger.debug("a metrics connection from %s failed: %r", client_address, sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _MetricsServer
    protocol_version = "HTTP/1.1"
    timeout = _CONNECTION_TIMEOUT_S

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/metrics":
            self._metrics()
        elif path == "/healthz":
            self._answer(200, b"ok\n")
        else:
            self._answer(404, b"not found: the metrics are at /metrics.\n")

    do_HEAD = do_GET  # noqa: N815 -- the base class looks for this name

    def _metrics(self) -> None:
        try:
            body, content_type = self.server.render(self.headers.get("Accept", ""))
        except Exception:
            logger.exception("cannot render the metrics page")
            self._answer(500, b"cannot render the metrics page: see the log of this process.\n")
            return
        compressed = "gzip" in self.headers.get("Accept-Encoding", "").lower()
        self._answer(200, gzip.compress(body, 1) if compressed else body, content_type, compressed=compressed)

    def _answer(
        self, code: int, body: bytes, content_type: str = "text/plain; charset=utf-8", *, compressed: bool = False
    ) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- signature of the base class
        logger.debug(format, *args)
