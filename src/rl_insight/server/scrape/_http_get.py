"""One GET request on the event loop, limited in time and size."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from urllib.parse import urlsplit

import httptools

from rl_insight.errors import InsightError
from rl_insight.server.http.bodies import decompress


class ScrapeError(InsightError):
    """A page could not be fetched."""


class Page:
    """The response to a GET request, filled in by httptools' parser."""

    def __init__(self, limit: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.is_complete = False
        self._limit = limit

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header."""
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, part: bytes) -> None:
        """Add a part of the body."""
        self.body += part
        if len(self.body) > self._limit:
            raise ScrapeError(f"the page is longer than {self._limit} bytes")

    def on_message_complete(self) -> None:
        """Mark the end."""
        self.is_complete = True


async def fetch(url: str, *, accept: str, timeout_s: float, limit: int) -> Page:
    """Fetch the page at a URL; redirects are not followed.

    Raises:
        ScrapeError: it cannot be reached, takes too long, is too large, or is not HTTP.
    """
    try:
        page = await asyncio.wait_for(_fetch(url, accept, limit), timeout_s)
        encoding = page.headers.get("content-encoding", "")
        page.body = bytearray(decompress(bytes(page.body), encoding, limit))
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise ScrapeError(f"timed out after {timeout_s:g} s") from error
    except OSError as error:
        raise ScrapeError(error.strerror or str(error) or type(error).__name__) from error
    except (httptools.HttpParserError, UnicodeError, ValueError) as error:
        reason = error.__context__ if isinstance(error.__context__, InsightError) else None
        raise ScrapeError(str(reason) if reason else "the response is not HTTP") from error
    except ScrapeError:
        raise
    except InsightError as error:
        raise ScrapeError(str(error).rstrip(".")) from error
    if page.status != 200:
        raise ScrapeError(f"status {page.status}")
    return page


async def _fetch(url: str, accept: str, limit: int) -> Page:
    parts = urlsplit(url)
    secure = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or (443 if secure else 80)
    reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=secure)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        host = parts.netloc.rpartition("@")[2]
        lines = (
            f"GET {target} HTTP/1.1",
            f"Host: {host}",
            f"Accept: {accept}",
            "Accept-Encoding: gzip",
            "User-Agent: rl-insight",
            "Connection: close",
        )
        writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("ascii"))
        page = Page(limit)
        parser = httptools.HttpResponseParser(page)
        while not page.is_complete:
            part = await reader.read(65536)
            if not part:
                break
            parser.feed_data(part)
        page.status = parser.get_status_code()
        return page
    finally:
        writer.close()
        with contextlib.suppress(Exception):
            await writer.wait_closed()
