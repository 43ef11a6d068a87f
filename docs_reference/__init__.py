"""Reference pages of the documentation, made from the code when the site is built: nothing of them is committed."""

from __future__ import annotations

from collections.abc import Callable

from docs_reference import api, command_line, http_api, settings

PAGES: dict[str, Callable[[], str]] = {
    "reference/api.md": api.page,
    "reference/cli.md": command_line.page,
    "reference/http.md": http_api.page,
    "reference/settings.md": settings.page,
}
"""The path of each page, and what writes it."""
