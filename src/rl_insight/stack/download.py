"""Downloads over HTTP: through the user's proxies, resumed after a failure, with progress."""

from __future__ import annotations

import contextlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

from rl_insight._version import __version__
from rl_insight.backoff import Backoff
from rl_insight.stack.errors import StackError

Progress = Callable[[int, int | None], None]
"""Called with the bytes downloaded, and the total if the server sends it."""

_CHUNK = 256 * 1024
_TIMEOUT_S = 60.0
_ATTEMPTS = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 10.0
_MAX_TEXT_BYTES = 4 * 1024 * 1024


def fetch(
    url: str,
    target: Path,
    *,
    progress: Progress | None = None,
    attempts: int = _ATTEMPTS,
    pause_s: float = _FIRST_PAUSE_S,
) -> None:
    """Download a file. An interrupted download is kept in `<target>.partial` and resumed.

    Proxies come from the usual variables (`https_proxy`, `http_proxy`, `no_proxy`).

    Raises:
        StackError: it cannot be downloaded; the message has the URL and an alternative.
    """
    partial = target.with_name(target.name + ".partial")
    stamp = target.with_name(target.name + ".etag")
    target.parent.mkdir(parents=True, exist_ok=True)
    backoff = Backoff(pause_s, _LONGEST_PAUSE_S)
    for attempt in range(1, attempts + 1):
        try:
            _fetch_rest(url, partial, stamp, progress)
        except urllib.error.HTTPError as error:
            with error:
                if error.code < HTTPStatus.INTERNAL_SERVER_ERROR or attempt == attempts:
                    raise _refused(url, f"the server responded with {error.code}") from error
        except (OSError, http.client.HTTPException) as error:
            if attempt == attempts:
                raise _refused(url, str(getattr(error, "reason", None) or error or type(error).__name__)) from error
        else:
            partial.replace(target)
            stamp.unlink(missing_ok=True)
            return
        time.sleep(backoff.next_s())


def fetch_text(url: str) -> str:
    """Return the text at a URL, up to 4 MiB.

    Raises:
        StackError: it cannot be downloaded.
    """
    try:
        with _open(url, {}) as answer:
            return bytes(answer.read(_MAX_TEXT_BYTES)).decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise _refused(url, str(getattr(error, "reason", None) or error)) from error


def _refused(url: str, reason: str) -> StackError:
    return StackError(
        f"{url} cannot be downloaded: {reason}. Check https_proxy and no_proxy, or download the archives elsewhere "
        "and use `rl-insight server install --local-archive DIRECTORY`."
    )


def _fetch_rest(url: str, partial: Path, stamp: Path, progress: Progress | None) -> None:
    have = partial.stat().st_size if partial.is_file() else 0
    tag = stamp.read_text(encoding="utf-8") if stamp.is_file() else ""
    headers = {"Range": f"bytes={have}-", "If-Range": tag} if have and tag else {}
    try:
        answer = _open(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        error.close()
        partial.unlink()
        answer = _open(url, {})
    with answer:
        is_rest = answer.status == HTTPStatus.PARTIAL_CONTENT
        have = have if is_rest else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None and length.isdecimal() else None
        # Only a strong validator proves that the rest belongs to the first part.
        tag = answer.headers.get("ETag") or ""
        stamp.write_text("" if tag.startswith("W/") else tag, encoding="utf-8")
        with partial.open("ab" if is_rest else "wb") as stream:
            while chunk := answer.read(_CHUNK):
                stream.write(chunk)
                have += len(chunk)
                if progress is not None:
                    progress(have, total)
    if total is not None and have < total:
        raise ConnectionError(f"the connection was closed after {have} of {total} bytes")


def _open(url: str, headers: dict[str, str]) -> Any:
    # identity: a download can only be resumed with the same bytes.
    common = {"User-Agent": f"rl-insight/{__version__}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers={**common, **headers})
    # A new opener, because the shared one keeps the proxies that were set at its first use.
    return urllib.request.build_opener().open(request, timeout=_TIMEOUT_S)


def forget_partial(target: Path) -> None:
    """Delete the files of an unfinished download."""
    for suffix in (".partial", ".etag"):
        with contextlib.suppress(OSError):
            target.with_name(target.name + suffix).unlink()
