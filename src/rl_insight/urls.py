"""URLs and related helpers: loopback addresses, removing credentials for display, access tokens."""

from __future__ import annotations

import socket
from urllib.parse import SplitResult, urlsplit

from rl_insight.errors import ConfigError


def is_loopback(host: str) -> bool:
    """Return whether a host name or address means this machine.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("node7")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    import ipaddress  # not at the top: `import rl_insight` does not need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def without_credentials(url: str) -> str:
    """Return a URL for display, without user name and password.

    >>> without_credentials("http://me:secret@node7:18080/insight")
    'http://node7:18080/insight'
    """
    scheme, separator, rest = url.rpartition("://")
    authority, slash, path = rest.partition("/")
    return scheme + separator + authority.rpartition("@")[2] + slash + path


def host_and_port(host: str, port: int) -> str:
    """Return an address as written in URLs, with IPv6 in brackets.

    >>> host_and_port("::1", 80), host_and_port("node7", 8000)
    ('[::1]:80', 'node7:8000')
    """
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def reachable_address(host: str, port: int) -> str:
    """Return the address at which this machine can reach a listener on a host, which may be a wildcard address.

    >>> reachable_address("0.0.0.0", 80)
    '127.0.0.1:80'
    """
    return host_and_port({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)  # noqa: S104 -- not bound


def public_address(host: str, port: int) -> str:
    """Return the address for links that people open on other machines: of a wildcard address, this machine's name.

    >>> public_address("10.0.0.7", 80)
    '10.0.0.7:80'
    """
    is_wildcard = host in {"0.0.0.0", "::"}  # noqa: S104 -- not bound
    return host_and_port(socket.gethostname() if is_wildcard else host, port)


def split_http_url(url: str) -> SplitResult | None:
    """Return the parts of an http or https URL with a host; None for anything else.

    >>> split_http_url("http://node7:8000/metrics").hostname
    'node7'
    >>> split_http_url("http://:8000"), split_http_url("http://node7:port"), split_http_url("node7:8000")
    (None, None, None)
    """
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return None
    return parts if usable else None


def clean_token(token: str | None, key: str = "server.token") -> str | None:
    """Return a token without surrounding whitespace, which files and shells add; None for an empty one.

    Raises:
        ConfigError: it cannot be sent in an HTTP header. The message does not contain the token.

    >>> clean_token("0123456789abcdef ")
    '0123456789abcdef'
    """
    clean = (token or "").strip()
    if not clean:
        return None
    if not (clean.isascii() and clean.isprintable()) or " " in clean:
        raise ConfigError(
            f"{key} cannot be sent: it contains a space, a line break or a character that is not ASCII. "
            "Copy it again from the server's output or its server.json."
        )
    return clean


def bearer(token: str | None) -> dict[str, str]:
    """Return the authorization header for a token; empty without one.

    >>> bearer("abc"), bearer(None)
    ({'Authorization': 'Bearer abc'}, {})
    """
    clean = clean_token(token)
    return {"Authorization": f"Bearer {clean}"} if clean else {}
