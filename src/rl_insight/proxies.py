"""HTTP proxies: which one reaches a URL, and how to authenticate to it."""

from __future__ import annotations

import base64
import urllib.request
from urllib.parse import SplitResult, unquote, urlsplit

from rl_insight.urls import is_loopback


def proxy_of(url: SplitResult) -> SplitResult | None:
    """Return the proxy for a URL by the usual variables (`HTTPS_PROXY`, `NO_PROXY`); None for loopback addresses."""
    host = url.hostname or ""
    if is_loopback(host) or urllib.request.proxy_bypass(host):
        return None
    address = urllib.request.getproxies().get(url.scheme)
    if not address:
        return None
    return urlsplit(address if "://" in address else f"http://{address}")


def proxy_headers(proxy: SplitResult) -> dict[str, str]:
    """Return the authorization header for a proxy; empty if its URL has no user name.

    >>> proxy_headers(urlsplit("http://me:secret@proxy:3128"))
    {'Proxy-Authorization': 'Basic bWU6c2VjcmV0'}
    """
    if proxy.username is None:
        return {}
    credentials = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": "Basic " + base64.b64encode(credentials.encode()).decode()}
