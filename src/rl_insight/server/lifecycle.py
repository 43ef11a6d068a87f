"""Runs a server in this process: listens, announces itself, serves until a signal, and stores all accepted batches."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import psutil
import uvicorn
from starlette.types import ASGIApp

from rl_insight._version import __version__
from rl_insight.collector import Sink
from rl_insight.otlp.mapping import GRPC_MISSING, has_grpc
from rl_insight.server.app import create_app, create_otlp_app, protocol_of, secured
from rl_insight.server.config import OTLP_GRPC_PORT, OTLP_HTTP_PORT, ServerSettings
from rl_insight.server.http.made_files import remove_leftovers
from rl_insight.server.services import Services
from rl_insight.server.state import LOG_FILE, DataDirectory, ServerRecord, ServerStartError
from rl_insight.stack import MetricsEndpointOfServer, start_stack
from rl_insight.store.errors import StoreError
from rl_insight.transport import HttpTransport
from rl_insight.urls import host_and_port, public_address, reachable_address
from rl_insight.words import size_text

if TYPE_CHECKING:
    from rl_insight.server.otlp.grpc_server import OtlpGrpcServer

logger = logging.getLogger(__name__)

Announce = Callable[[ServerRecord], None]
"""Called once, when the server is ready."""

_GRACE_S = 1
_ADOPT_INTERVAL_S = 10.0
_LOG_BYTES = 10 * 1024 * 1024


def serve(settings: ServerSettings, announce: Announce) -> int:
    """Run a server until SIGINT or SIGTERM; return the exit code: 0, or 130 after Ctrl+C."""
    directory = DataDirectory(settings.directory)
    try:
        _log_to_file(directory.path, settings.log_level)
        remove_leftovers(directory.path)
        token = settings.token or (None if settings.is_loopback else secrets.token_urlsafe(24))
        with contextlib.ExitStack() as stack:
            ignore_sigterm = stack.enter_context(_orderly_sigterm())
            listeners = stack.enter_context(_listening(settings))
            port = listeners[0].getsockname()[1]
            main_url = _url(settings, reachable_address(settings.host, port))
            page_url = _url(settings, public_address(settings.host, port))
            sinks: list[Sink] = []
            if settings.stack.enabled:
                endpoint = MetricsEndpointOfServer(main_url, token, settings.tls_cert)
                external = start_stack(settings.stack, directory.path, endpoint, namespace=settings.namespace)
                sinks = stack.enter_context(external).sinks()
            services = _open(settings, token, sinks, page_url)
            stack.callback(services.close)
            services.otlp_port = listeners[-1].getsockname()[1]
            grpc_server = _start_grpc(services, settings)
            if grpc_server is not None:
                stack.callback(grpc_server.close)
            record = ServerRecord(
                pid=os.getpid(),
                url=main_url,
                token=token,
                process_started_s=psutil.Process().create_time(),
                started_ns=time.time_ns(),
                data_dir=str(directory.path),
                otlp_http_url=_otlp_http_url(settings, listeners),
                otlp_grpc_address=reachable_address(settings.host, grpc_server.port) if grpc_server else None,
                tls_cert=settings.tls_cert and str(Path(settings.tls_cert).expanduser().absolute()),
                version=__version__,
                diagnosis_rules=settings.diagnosis.rules,
            )

            def ready() -> None:
                services.is_ready = True
                directory.write(record)  # clients consider the server ready once they can read this
                stack.callback(_adopt_spools(record).close)
                logger.info("the server is ready at %s (pid %d)", record.url, record.pid)
                announce(record)

            code = _run(services, settings, listeners, ready)
            ignore_sigterm()
            logger.info("stopping")
        return code
    finally:
        directory.close()


def _adopt_spools(record: ServerRecord) -> HttpTransport:
    """Deliver batches spooled by processes on this machine that exited while no server was running."""
    return HttpTransport(
        None,
        process_id=f"server-{record.pid}",
        data_dir=Path(record.data_dir),
        ca_file=record.tls_cert,
        adopts_from=_own_urls(record.url),
        adopt_interval_s=_ADOPT_INTERVAL_S,
    )


def _own_urls(url: str) -> list[str]:
    """Return the URLs by which processes on this machine may have named the server.

    >>> _own_urls("http://127.0.0.1:18080")[:3]
    ['http://127.0.0.1:18080', 'http://localhost:18080', 'http://[::1]:18080']
    """
    parts = urlsplit(url)
    hosts = ["127.0.0.1", "localhost", "::1", socket.gethostname(), parts.hostname or ""]
    return list(dict.fromkeys(f"{parts.scheme}://{host_and_port(host, parts.port or 0)}" for host in hosts if host))


@contextlib.contextmanager
def _orderly_sigterm() -> Iterator[Callable[[], None]]:
    """Raise on SIGTERM during startup, so that everything started is stopped; later the event loop handles it.

    Yields a function that ignores further SIGTERMs, for use once the shutdown has begun.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    def ignore() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield ignore
    finally:
        signal.signal(signal.SIGTERM, before)


def _open(settings: ServerSettings, token: str | None, sinks: list[Sink], page_url: str) -> Services:
    free = shutil.disk_usage(settings.directory).free
    if free < settings.store.min_free_bytes:
        raise ServerStartError(
            f"cannot start: only {size_text(free)} are free on the disk of {settings.directory}. "
            "Free some space, or choose another --data-dir."
        )
    try:
        return Services(settings, sinks=sinks, token=token, page_url=page_url)
    except (OSError, StoreError) as error:
        raise ServerStartError(f"cannot open the store in {settings.directory}: {error}") from error


@contextlib.contextmanager
def _listening(settings: ServerSettings) -> Iterator[list[socket.socket]]:
    """Listen on the main port and, if enabled and free, on the port for OTLP over HTTP."""
    sockets = [_listen(settings.host, settings.port, "port")]
    try:
        if settings.otlp_http_port is not None:
            try:
                sockets.append(_listen(settings.host, settings.otlp_http_port, "otlp_http_port"))
            except ServerStartError as error:
                if settings.otlp_http_port != OTLP_HTTP_PORT:
                    raise
                logger.warning("%s OTLP over HTTP is available on the main port only.", error)
        yield sockets
    finally:
        for opened in sockets:
            opened.close()


def _listen(host: str, port: int, key: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServerStartError(f"cannot listen on {host!r}: it is not an address of this machine.") from error
    family, *_, address = found[0]
    is_dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=is_dual)
        listener.setblocking(False)
    except OSError as error:
        raise ServerStartError(_why_not(host, port, key, error)) from error
    return listener


def _taken(host: str, port: int, key: str) -> str:
    return (
        f"port {port} on {host} is in use by another program: choose another with {key}=PORT (0 means any free port)."
    )


def _why_not(host: str, port: int, key: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return _taken(host, port, key)
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs root privileges: choose one above 1023 with {key}=PORT."
    if error.errno == errno.EADDRNOTAVAIL:
        return f"cannot listen on {host}: it is not an address of this machine."
    return f"cannot listen on {host} port {port}: {error.strerror or error}."


def _start_grpc(services: Services, settings: ServerSettings) -> OtlpGrpcServer | None:
    port = settings.otlp_grpc_port
    if port is None:
        return None
    if not has_grpc():
        if port != OTLP_GRPC_PORT:
            raise ServerStartError(f"cannot listen for OTLP over gRPC on port {port}: {GRPC_MISSING}")
        logger.info("OTLP over gRPC is off: %s", GRPC_MISSING)
        return None
    from rl_insight.server.otlp.grpc_server import OtlpGrpcServer

    try:
        return OtlpGrpcServer(services, settings.host, port)
    except OSError as error:
        sentence = _taken(settings.host, port, "otlp_grpc_port")
        if port != OTLP_GRPC_PORT:
            raise ServerStartError(sentence) from error
        logger.warning("%s OTLP over gRPC is off.", sentence)
        return None


class _UvicornServer(uvicorn.Server):
    """A uvicorn server that leaves signals to us, because there are two servers, and sets an event once it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and set the event."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


def _run(
    services: Services, settings: ServerSettings, listeners: list[socket.socket], ready: Callable[[], None]
) -> int:
    main, otlp = (secured(make(services), services) for make in (create_app, create_otlp_app))
    apps = [(main, protocol_of(services, main)), (otlp, protocol_of(services))]
    servers = [_UvicornServer(_uvicorn_config(*app, settings)) for app, _ in zip(apps, listeners, strict=False)]
    return _event_loop()(_main(services, servers, listeners, ready))


def _event_loop() -> Callable[[Coroutine[Any, Any, int]], int]:
    """Return uvloop's runner if it is installed (14 MB, hardly faster), else asyncio's."""
    try:
        from uvloop import run
    except ImportError:
        return asyncio.run
    return run


async def _main(
    services: Services, servers: list[_UvicornServer], listeners: list[socket.socket], ready: Callable[[], None]
) -> int:
    code = 0
    loop = asyncio.get_running_loop()

    def stop(number: int) -> None:
        nonlocal code
        code = 130 if number == signal.SIGINT else 0
        services.is_ready = False
        for server in servers:
            # A second signal does not wait for requests in flight.
            server.force_exit = server.should_exit
            server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    serving = [
        asyncio.create_task(server.serve(sockets=[listener]))
        for server, listener in zip(servers, listeners, strict=True)
    ]
    scraping = asyncio.create_task(services.scraper.run())
    for server in servers:
        await server.listening.wait()
    ready()
    await asyncio.gather(*serving)
    scraping.cancel()
    await asyncio.gather(scraping, return_exceptions=True)
    return code


def _uvicorn_config(app: ASGIApp, protocol: type[asyncio.Protocol], settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=protocol,
        loop="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=_GRACE_S,
        ssl_certfile=None if settings.tls_cert is None else str(Path(settings.tls_cert).expanduser()),
        ssl_keyfile=None if settings.tls_key is None else str(Path(settings.tls_key).expanduser()),
    )


def _url(settings: ServerSettings, address: str) -> str:
    return f"{'https' if settings.tls_cert else 'http'}://{address}"


def _otlp_http_url(settings: ServerSettings, listeners: list[socket.socket]) -> str | None:
    if len(listeners) == 1:
        return None
    return _url(settings, reachable_address(settings.host, listeners[1].getsockname()[1]))


def _log_to_file(directory: Path, level: str) -> None:
    try:
        handler = RotatingFileHandler(directory / LOG_FILE, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    except OSError as error:
        raise ServerStartError(f"cannot write the log {directory / LOG_FILE}: {error.strerror or error}.") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
