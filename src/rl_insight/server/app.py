"""The web application: routes, error responses, and the page."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from rl_insight._version import __version__
from rl_insight.errors import ConfigError
from rl_insight.exchange.errors import NothingSelectedError
from rl_insight.exchange.report.model import ReportDocument
from rl_insight.server.http.answers import add_components
from rl_insight.server.http.body_guard import BodyGuard
from rl_insight.server.http.guarded_protocol import ArrivalLimits, GuardedProtocol, guarded_protocol
from rl_insight.server.http.pages import STATIC, add_page, docs_page
from rl_insight.server.http.quick_requests import QuickProtocol
from rl_insight.server.http.security import SecurityMiddleware
from rl_insight.server.ingest import retry_after_header
from rl_insight.server.routes import clients, exports, findings, health, live, questions, runs, sql, targets, views
from rl_insight.server.routes import ingest as ingest_route
from rl_insight.server.routes import otlp as otlp_route
from rl_insight.store.errors import (
    NotFoundError,
    QueryError,
    RunNotFoundError,
    StoreBusyError,
    StoreError,
    StoreFullError,
    StoreOverloadedError,
)

if TYPE_CHECKING:
    from rl_insight.server.services import Services

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
"""A route function that reads its request itself."""

_GROUPS = (health, runs, questions, exports, findings, views, live, sql, targets, clients, ingest_route, otlp_route)
"""The routes of the main port, in the order of the documentation."""
_STATUS_OF: tuple[tuple[type[Exception], int], ...] = (
    (RunNotFoundError, 404),
    (NotFoundError, 404),
    (QueryError, 400),
    (ConfigError, 400),
    (NothingSelectedError, 400),
    (StoreBusyError, 409),
    (StoreOverloadedError, 429),
    (StoreFullError, 507),
    (StoreError, 503),
    (MemoryError, 503),
)
"""The HTTP status of an error; the first match counts."""

_GZIP_FROM_BYTES = 2048
"""Longer responses are compressed for clients that accept it; the live stream never is."""

_INGEST: dict[str, Endpoint] = {"/api/v1/ingest": ingest_route.ingest}
_OTLP: dict[str, Endpoint] = otlp_route.ENDPOINTS
_STREAMED = frozenset({"/api/v1/runs/file"})
"""Routes that write their bodies to disk."""
_OWN_LIMITS = frozenset({*_INGEST, *_OTLP, *_STREAMED})
"""Routes that limit the length of their bodies themselves."""
_MAX_QUESTION_BYTES = 1024 * 1024
"""The longest body of any other route: SQL, or a target. As JSON it may take thirty times as much memory."""


def create_app(services: Services | None) -> FastAPI:
    """Return the application of the main port: page, API, ingest, OTLP.

    Routes get the services as ``request.app.state.services``; a new group of routes is added to `_GROUPS`.
    """
    app = _new_app(services, title="RL-Insight", direct_endpoints=_INGEST | _OTLP)
    for group in _GROUPS:
        app.include_router(group.router)

    describe = app.openapi
    app.openapi = lambda: add_components(describe())  # type: ignore[method-assign]

    @app.get("/docs", include_in_schema=False)
    def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    page_dir = None if services is None else services.settings.page_dir
    add_page(app, STATIC if page_dir is None else Path(page_dir).expanduser())
    app.add_middleware(GZipMiddleware, minimum_size=_GZIP_FROM_BYTES, compresslevel=1)
    return app


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the main port, without starting anything."""
    return create_app(None).openapi()


def page_document() -> dict[str, Any]:
    """Return the document that the types of the page are generated from: the API's, and the data of reports."""
    return add_components(openapi_document(), ReportDocument)


def create_otlp_app(services: Services) -> FastAPI:
    """Return the application of the OTLP port."""
    app = _new_app(services, title="RL-Insight OTLP", direct_endpoints=_OTLP)
    app.include_router(otlp_route.router)
    return app


def secured(app: FastAPI, services: Services) -> SecurityMiddleware:
    """Return an application behind `SecurityMiddleware` and `BodyGuard`; ingest requests bypass the framework."""
    settings = services.settings
    guarded = BodyGuard(
        DirectRoutes(app, app.state.direct_endpoints),
        max_bytes=min(settings.max_body_bytes, _MAX_QUESTION_BYTES),
        budget=services.inflight,
        own_limits=_OWN_LIMITS,
        streamed=_STREAMED,
        on_refused=lambda reason: services.counters.refuse("http", reason),
    )
    return SecurityMiddleware(
        guarded,
        token=services.token,
        allowed_hosts=settings.allowed_hosts,
        is_secure=settings.tls_cert is not None,
    )


def protocol_of(services: Services, quick: SecurityMiddleware | None = None) -> type[GuardedProtocol]:
    """Return the protocol of a port; with the main port's application, it serves small ingest requests itself."""
    limits = ArrivalLimits(
        services.settings.header_timeout_s,
        services.settings.body_timeout_s,
        services.inflight,
        on_refused=lambda reason: services.counters.refuse("http", reason),
        streamed=_STREAMED,
    )
    if quick is None:
        return guarded_protocol(GuardedProtocol, limits)
    return guarded_protocol(QuickProtocol, limits, route=ingest_route.QuickIngest(services, quick, error_answer))


class DirectRoutes:
    """Calls the functions of some POST routes directly; all other requests go through the framework.

    Thousands of processes send small batches. The framework's middleware, matching the path against every route,
    resolving dependencies and deciding whether to compress cost as much as storing such a batch. The routes stay
    registered, for the documentation and for other methods.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self._app = app
        self._endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        endpoint = self._endpoints.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        if endpoint is None:
            await self._app(scope, receive, send)
            return
        scope["app"] = self._app
        request = Request(scope, receive)
        try:
            answer = await endpoint(request)
        except Exception as error:  # noqa: BLE001  (a route may raise anything)
            answer = await error_answer(request, error)
        await answer(scope, receive, send)


def _new_app(services: Services | None, title: str, direct_endpoints: dict[str, Endpoint]) -> FastAPI:
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None)
    app.state.services = services
    app.state.direct_endpoints = direct_endpoints
    own = (kind for kind, _ in _STATUS_OF)
    for kind in (HTTPException, RequestValidationError, ClientDisconnect, *own, Exception):
        app.add_exception_handler(kind, error_answer)
    return app


async def error_answer(request: Request, error: Exception) -> Response:
    """Return the response to a request that failed."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)  # the client cannot read it
    if isinstance(error, HTTPException):
        sentence = str(error.detail)
        if error.status_code == 404 and sentence == "Not Found":
            sentence = f"there is nothing at {request.url.path}: see /docs for the routes."
        return _error(sentence, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        return _error(" ".join(map(_sentence, error.errors())), 422)
    status = next((status for kind, status in _STATUS_OF if isinstance(error, kind)), None)
    if status is None:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return _error("internal error: see the server's log (`rl-insight server logs`).", 500)
    sentence, headers = str(error), {}
    if isinstance(error, MemoryError):
        logger.warning("refused %s %s: not enough memory", request.method, request.url.path)
        sentence = "not enough memory for this request. Try again when fewer requests are in flight."
    if status in {429, 503, 507}:
        headers = retry_after_header(getattr(error, "retry_after_s", None))
    return _error(sentence, status, headers)


def _error(sentence: str, status: int, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": sentence}, status, headers)


def _sentence(problem: Any) -> str:
    where = ".".join(str(part) for part in problem.get("loc", ())) or "the request"
    return f"{where}: {problem.get('msg', 'invalid')}."
