"""The web application: routes, answers to errors, and the page."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from rl_insight._version import __version__
from rl_insight.errors import ConfigError
from rl_insight.exchange.errors import NothingSelectedError
from rl_insight.server.http.answers import add_components
from rl_insight.server.http.body_guard import BodyGuard
from rl_insight.server.http.direct import DirectRoutes, Endpoint
from rl_insight.server.http.pages import STATIC, add_page, docs_page
from rl_insight.server.http.security import SecurityMiddleware
from rl_insight.server.routes import ROUTERS
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
)
"""What an error of ours means over HTTP; the first that fits."""

_GZIP_FROM_BYTES = 2048
"""Longer answers are compressed for those who accept it; the live stream never is."""

_INGEST: dict[str, Endpoint] = {"/api/v1/ingest": ingest_route.ingest}
_OTLP: dict[str, Endpoint] = {
    "/v1/traces": otlp_route.traces,
    "/v1/metrics": otlp_route.metrics,
    "/v1/logs": otlp_route.logs,
}
_STREAMED = frozenset({"/api/v1/runs/file"})
"""Routes that write their bodies to disk."""
_OWN_LIMITS = frozenset({*_INGEST, *_OTLP, *_STREAMED})
"""Routes that bound the length of their bodies themselves."""
_MAX_QUESTION_BYTES = 1024 * 1024
"""The longest body of any other route: SQL, or a target. As JSON it may take thirty times as much memory."""


def create_app(services: Services | None) -> FastAPI:
    """Return the application of the main port: page, API, ingest, OTLP.

    Routes find the services as ``request.app.state.services``; a new group of routes is a router in `routes.ROUTERS`.
    """
    app = _new_app(services, title="RL-Insight", direct_endpoints=_INGEST | _OTLP)
    for router in (*ROUTERS, otlp_route.router):
        app.include_router(router)

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


def create_otlp_app(services: Services) -> FastAPI:
    """Return the application of the OTLP port."""
    app = _new_app(services, title="RL-Insight OTLP", direct_endpoints=_OTLP)
    app.include_router(otlp_route.router)
    return app


def quick_ingest(app: SecurityMiddleware, services: Services) -> ingest_route.QuickIngest:
    """Return how small requests to the ingest route of a secured application are served."""
    return ingest_route.QuickIngest(services, app, _any_error)


def secured(app: FastAPI, services: Services) -> SecurityMiddleware:
    """Return an application behind the checks of `SecurityMiddleware` and `BodyGuard`; ingest is served directly."""
    settings = services.settings
    guarded = BodyGuard(
        DirectRoutes(app, endpoints=app.state.direct_endpoints, http_error=_http_error, any_error=_any_error),
        timeout_s=settings.body_timeout_s,
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


def _new_app(services: Services | None, title: str, direct_endpoints: dict[str, Endpoint]) -> FastAPI:
    app = FastAPI(title=title, version=__version__, docs_url=None, redoc_url=None)
    app.state.services = services
    app.state.direct_endpoints = direct_endpoints
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for kind, _ in _STATUS_OF:
        app.add_exception_handler(kind, _own_error)
    app.add_exception_handler(MemoryError, _out_of_memory)
    app.add_exception_handler(Exception, _unexpected_error)
    return app


async def _http_error(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)  # noqa: S101 -- registered for nothing else
    sentence = str(error.detail)
    if error.status_code == 404 and sentence == "Not Found":
        sentence = f"there is nothing at {request.url.path}: see /docs for what there is."
    return JSONResponse({"error": sentence}, status_code=error.status_code, headers=error.headers)


async def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)  # noqa: S101 -- registered for nothing else
    return JSONResponse({"error": " ".join(map(_sentence, error.errors()))}, status_code=422)


def _sentence(problem: Any) -> str:
    where = ".".join(str(part) for part in problem.get("loc", ())) or "the request"
    return f"{where}: {problem.get('msg', 'it cannot be used')}."


async def _own_error(_request: Request, error: Exception) -> JSONResponse:
    status = next(status for kind, status in _STATUS_OF if isinstance(error, kind))
    headers = {}
    if status in {429, 503, 507}:
        headers["Retry-After"] = str(max(1, round(getattr(error, "retry_after_s", 2.0))))
    return JSONResponse({"error": str(error)}, status_code=status, headers=headers)


async def _out_of_memory(request: Request, _error: Exception) -> JSONResponse:
    logger.warning("%s %s was refused: there was not enough memory for it", request.method, request.url.path)
    sentence = "there is not enough memory for this now. Try again when fewer requests are in flight."
    return JSONResponse({"error": sentence}, 503, headers={"Retry-After": "2"})


async def _any_error(request: Request, error: Exception) -> JSONResponse:
    if isinstance(error, MemoryError):
        return await _out_of_memory(request, error)
    is_own = any(isinstance(error, kind) for kind, _ in _STATUS_OF)
    return await (_own_error if is_own else _unexpected_error)(request, error)


async def _unexpected_error(request: Request, error: Exception) -> JSONResponse:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
    return JSONResponse({"error": "this failed in the server: its log says why (`rl-insight server logs`)."}, 500)
