"""Runs a server in this process: listens, announces itself, serves until a signal, and stores what it accepted."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn
from starlette.types import ASGIApp

from rl_insight._version import __version__
from rl_insight.collector import Sink
from rl_insight.otlp.mapping import GRPC_MISSING, has_grpc
from rl_insight.server.app import create_app, create_otlp_app, quick_ingest, secured
from rl_insight.server.config import OTLP_GRPC_PORT, OTLP_HTTP_PORT, ServerSettings
from rl_insight.server.http.header_guard import HeaderGuard, guarded_protocol
from rl_insight.server.http.quick_requests import QuickProtocol
from rl_insight.server.services import Services
from rl_insight.server.state import LOG_FILE, DataDirectory, ServerRecord, ServerStartError, new_record
from rl_insight.stack import MetricsEndpointOfServer, start_stack
from rl_insight.store.errors import StoreError
from rl_insight.transport import HttpTransport
from rl_insight.urls import reachable_address

if TYPE_CHECKING:
    from rl_insight.server.otlp.grpc_server import OtlpGrpcServer

logger = logging.getLogger(__name__)

Announce = Callable[[ServerRecord], None]
"""Called once, when the server can be reached."""

_GRACE_S = 1
_ADOPT_INTERVAL_S = 10.0
_LOG_BYTES = 10 * 1024 * 1024


def serve(settings: ServerSettings, announce: Announce) -> int:
    """Run a server until SIGINT or SIGTERM; returns the exit code: 0, or 130 after Ctrl+C.

    Raises:
        ServerStartError: it cannot start.
    """
    directory = DataDirectory(settings.directory)
    try:
        _log_to_file(directory.path, settings.log_level)
        token = settings.token or (None if settings.is_loopback else secrets.token_urlsafe(24))
        with contextlib.ExitStack() as stack:
            ignore_sigterm = stack.enter_context(_orderly_sigterm())
            listeners = stack.enter_context(_listening(settings))
            main_url = _url(settings, listeners[0].getsockname()[1])
            sinks = stack.enter_context(_external_stack(settings, directory.path, main_url, token))
            services = _open(settings, token, sinks)
            stack.callback(services.close)
            services.otlp_port = listeners[-1].getsockname()[1]
            grpc_server = _start_grpc(services, settings)
            if grpc_server is not None:
                stack.callback(grpc_server.close)
            record = new_record(
                main_url,
                token=token,
                data_dir=directory.path,
                otlp_http_url=_url(settings, listeners[1].getsockname()[1]) if len(listeners) > 1 else None,
                otlp_grpc_address=reachable_address(settings.host, grpc_server.port) if grpc_server else None,
                tls_cert=settings.tls_cert,
                version=__version__,
                diagnosis_rules=settings.diagnosis.rules,
            )

            def ready() -> None:
                directory.write(record)
                services.is_ready = True
                stack.callback(_adopt_spools(record).close)
                logger.info("the server is ready at %s (pid %d)", record.url, record.pid)
                announce(record)

            code = _run(services, settings, listeners, ready)
            ignore_sigterm()
            logger.info("the server stops")
        return code
    finally:
        directory.close()


def _adopt_spools(record: ServerRecord) -> HttpTransport:
    """Have this server sent what processes on this machine recorded while none ran, and did not live to deliver."""
    return HttpTransport(
        None,
        process_id=f"server-{record.pid}",
        data_dir=Path(record.data_dir),
        ca_file=record.tls_cert,
        adopt_interval_s=_ADOPT_INTERVAL_S,
    )


@contextlib.contextmanager
def _orderly_sigterm() -> Iterator[Callable[[], None]]:
    """Let SIGTERM end a start by an exception, so that what was started is ended; later the event loop takes it.

    Yields what makes a second SIGTERM harmless, once the first one has begun the orderly end.
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


@contextlib.contextmanager
def _external_stack(settings: ServerSettings, directory: Path, url: str, token: str | None) -> Iterator[list[Sink]]:
    """Start Prometheus, Tempo and Grafana beside the server, if wanted; yields the sinks that feed them."""
    if not settings.stack.enabled:
        yield []
        return
    endpoint = MetricsEndpointOfServer(url, token, settings.tls_cert)
    with start_stack(settings.stack, directory, endpoint, namespace=settings.namespace) as running:
        yield running.sinks()


def _open(settings: ServerSettings, token: str | None, sinks: list[Sink]) -> Services:
    free = shutil.disk_usage(settings.directory).free
    if free < settings.store.min_free_bytes:
        raise ServerStartError(
            f"cannot start: only {free >> 20} MiB are free on the disk of {settings.directory}. "
            "Make room, or choose another --data-dir."
        )
    try:
        return Services(settings, sinks=sinks, token=token)
    except (OSError, StoreError) as error:
        raise ServerStartError(f"cannot open the store in {settings.directory}: {error}") from error


@contextlib.contextmanager
def _listening(settings: ServerSettings) -> Iterator[list[socket.socket]]:
    """Listen on the main port and, where wanted and free, on the one for OTLP over HTTP."""
    sockets = [_listen(settings.host, settings.port, "port")]
    try:
        if settings.otlp_http_port is not None:
            try:
                sockets.append(_listen(settings.host, settings.otlp_http_port, "otlp_http_port"))
            except ServerStartError as error:
                if settings.otlp_http_port != OTLP_HTTP_PORT:
                    raise
                logger.warning("%s OTLP over HTTP is taken on the main port only.", error)
        yield sockets
    finally:
        for opened in sockets:
            opened.close()


def _listen(host: str, port: int, key: str) -> socket.socket:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ServerStartError(f"cannot listen on {host!r}: it is not an address of this machine.") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise ServerStartError(_why_not(host, port, key, error)) from error
    return listener


def _why_not(host: str, port: int, key: str, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another program: choose another with {key}=PORT (0 takes a free one)."
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs more rights: choose one above 1023 with {key}=PORT."
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
        sentence = (
            f"port {port} on {settings.host} is taken by another program: choose another with otlp_grpc_port=PORT."
        )
        if port != OTLP_GRPC_PORT:
            raise ServerStartError(sentence) from error
        logger.warning("%s OTLP over gRPC is off.", sentence)
        return None


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to us, because there are two of them, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture nothing."""
        yield


def _run(
    services: Services, settings: ServerSettings, listeners: list[socket.socket], ready: Callable[[], None]
) -> int:
    def on_slow() -> None:
        services.counters.refuse("http", "slow")

    main, otlp = (secured(make(services), services) for make in (create_app, create_otlp_app))
    quick = quick_ingest(main, services)
    apps: list[tuple[ASGIApp, type[HeaderGuard]]] = [
        (main, guarded_protocol(QuickProtocol, settings.header_timeout_s, on_slow, route=quick)),
        (otlp, guarded_protocol(HeaderGuard, settings.header_timeout_s, on_slow)),
    ]
    servers = [_Server(_uvicorn_config(*app, settings)) for app, _ in zip(apps, listeners, strict=False)]
    return _event_loop()(_main(services, servers, listeners, ready))


def _event_loop() -> Callable[[Coroutine[Any, Any, int]], int]:
    """Return what runs the server: uvloop where it is installed (14 MB, hardly faster), else asyncio."""
    try:
        from uvloop import run
    except ImportError:
        return asyncio.run
    return run


async def _main(
    services: Services, servers: list[_Server], listeners: list[socket.socket], ready: Callable[[], None]
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


def _url(settings: ServerSettings, port: int) -> str:
    scheme = "https" if settings.tls_cert else "http"
    return f"{scheme}://{reachable_address(settings.host, port)}"


def _log_to_file(directory: Path, level: str) -> None:
    try:
        handler = RotatingFileHandler(directory / LOG_FILE, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    except OSError as error:
        raise ServerStartError(f"cannot write the log {directory / LOG_FILE}: {error.strerror or error}.") from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(level.upper())
