"""The ingest routes as plain ASGI: their functions are called without the framework's way to them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

Endpoint = Callable[[Request], Awaitable[Response]]
"""A route's function that reads its request by itself."""
ErrorAnswer = Callable[[Request, Exception], Awaitable[Response]]


class DirectRoutes:
    """Serves a POST to some paths with the functions of their routes; everything else goes the usual way.

    Thousands of processes send small batches. The framework's middleware, matching the path against every route,
    solving dependencies and asking whether the answer should be compressed cost as much as taking such a batch. The
    routes stay where they are, for the documentation and for other methods.

    Args:
        app: what serves everything else, and what the routes know as their application.
        endpoints: the routes' functions by path.
        http_error: makes the answer to an `HTTPException`, such as that of the body guard.
        any_error: makes the answer to any other error.
    """

    def __init__(
        self, app: ASGIApp, *, endpoints: Mapping[str, Endpoint], http_error: ErrorAnswer, any_error: ErrorAnswer
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._http_error = http_error
        self._any_error = any_error

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
        except HTTPException as error:
            answer = await self._http_error(request, error)
        except ClientDisconnect:
            return  # there is no one to answer
        except Exception as error:  # noqa: BLE001  (a route may raise anything)
            answer = await self._any_error(request, error)
        await answer(scope, receive, send)
