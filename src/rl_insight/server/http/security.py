"""Access control: the token, the host names of a loopback server, and security headers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlencode, urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rl_insight.urls import is_loopback

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Accessible without a token: health checks."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}
RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


def bearer_matches(authorization: str, token: str) -> bool:
    """Return whether an `Authorization` header has the token, in constant time.

    >>> bearer_matches("Bearer s3cret", "s3cret"), bearer_matches("s3cret", "s3cret")
    (True, False)
    """
    scheme, _, shown = authorization.partition(" ")
    return scheme.lower() == "bearer" and _same(shown.strip(), token)


def _same(shown: str, token: str) -> bool:
    return hmac.compare_digest(shown.encode("utf-8", "surrogateescape"), token.encode())


def cookie_name(token: str) -> str:
    """Return the name of a server's cookie; it differs between servers on one host, because cookies ignore ports."""
    return f"rl_insight_{hashlib.sha256(token.encode()).hexdigest()[:8]}"


class SecurityMiddleware:
    """Requires the token, refuses foreign host names and origins, and sets security headers.

    - With a token, every request needs it: `Authorization: Bearer ...`, or the cookie that `/?token=...` sets.
    - Without one (loopback only), `Host` must be a name of this machine: protects against DNS rebinding.
    - Pages of other origins cannot change anything; there are no CORS headers.
    """

    def __init__(
        self, app: ASGIApp, *, token: str | None = None, allowed_hosts: Iterable[str] = (), is_secure: bool = False
    ) -> None:
        self._app = app
        self._token = token
        self._allowed_hosts = frozenset(host.lower() for host in allowed_hosts)
        self._is_secure = is_secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(one for one in RAW_HEADERS if one[0] not in present)]
            await send(message)

        answer = self.refusal(scope)
        await (answer or self._app)(scope, receive, send_with_headers)

    def refusal(self, scope: Scope) -> Response | None:
        """Return the response to a request that is refused or redirected; None for one that may reach the app."""
        headers = Headers(scope=scope)
        if not self._is_known_host(headers.get("host", "")):
            return _refusal(403, "unknown host name: open the server as localhost, or add the name to allowed_hosts.")
        if scope["method"] not in _SAFE_METHODS and not self._is_same_origin(headers):
            return _refusal(403, "requests from pages of another origin are refused.")
        if self._token is None or scope["path"] in OPEN_PATHS:
            return None
        if bearer_matches(headers.get("authorization", ""), self._token) or self._has_cookie(headers):
            return None
        given = parse_qs(scope.get("query_string", b"").decode("latin-1"))
        if scope["method"] == "GET" and _same(given.pop("token", [""])[0], self._token):
            return self._welcome(scope["path"], given)
        answer = _refusal(
            401,
            "the token is missing or wrong: send 'Authorization: Bearer <token>', or open the page with /?token=...",
        )
        answer.headers["WWW-Authenticate"] = 'Bearer realm="rl-insight"'
        return answer

    def _welcome(self, path: str, query: dict[str, list[str]]) -> Response:
        """Store the token in a cookie and remove it from the URL."""
        assert self._token is not None  # noqa: S101 -- only called with one
        # Never two leading slashes: a browser would read them as another host.
        target = "/" + path.lstrip("/\\") + (f"?{urlencode(query, doseq=True)}" if query else "")
        answer = RedirectResponse(target, status_code=303)
        answer.set_cookie(
            cookie_name(self._token),
            self._token,
            max_age=30 * 86_400,
            httponly=True,
            samesite="strict",
            secure=self._is_secure,
        )
        return answer

    def _has_cookie(self, headers: Headers) -> bool:
        if self._token is None:
            return False
        try:
            found = SimpleCookie(headers.get("cookie", "")).get(cookie_name(self._token))
        except CookieError:
            return False
        return found is not None and _same(found.value, self._token)

    def _is_known_host(self, host: str) -> bool:
        if self._token is not None:
            return True
        return _is_this_machine(host) or _host_name(host) in self._allowed_hosts

    @staticmethod
    def _is_same_origin(headers: Headers) -> bool:
        origin = headers.get("origin")
        if origin is None:
            return True
        try:
            return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
        except ValueError:  # such as "http://["
            return False


@lru_cache(maxsize=1024)
def _is_this_machine(host: str) -> bool:
    return is_loopback(_host_name(host))


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _refusal(status: int, sentence: str) -> Response:
    return JSONResponse({"error": sentence}, status_code=status)
