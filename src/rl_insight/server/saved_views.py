"""Saved views of the page and pinned metrics; they survive restarts."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

import msgspec

from rl_insight.errors import ConfigError
from rl_insight.files import read_or_set_aside, replace_file

VIEWS_FILE: Final = "views.json"
MAX_VIEWS: Final = 200
MAX_PINS: Final = 100
MAX_NAME_LENGTH: Final = 100
MAX_ADDRESS_LENGTH: Final = 8_000


class SavedView(msgspec.Struct, frozen=True):
    """A state of the page under a name."""

    name: str
    address: str
    """The query of the page's URL, with its question mark."""


class SavedViews(msgspec.Struct, frozen=True):
    """All saved views and pinned metrics."""

    views: list[SavedView] = []
    """Sorted by name."""
    pins: list[str] = []
    """Metrics, in the order in which they were pinned."""


class ViewBook:
    """The saved views, in memory and in a file that is rewritten at each change."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self.saved = read_or_set_aside(path, SavedViews())

    def save(self, name: str, address: str) -> SavedViews:
        """Save a view, replacing the one of that name; an empty address removes it."""
        name = name.strip()
        if not name or len(name) > MAX_NAME_LENGTH:
            raise ConfigError(f"a view needs a name of 1 to {MAX_NAME_LENGTH} characters.")
        if address and (not address.startswith("?") or len(address) > MAX_ADDRESS_LENGTH):
            raise ConfigError(
                f"a view needs the query of the page's URL, '?...', of at most {MAX_ADDRESS_LENGTH} characters."
            )
        with self._lock:
            kept = [view for view in self.saved.views if view.name != name]
            if address:
                kept.append(SavedView(name, address))
            if len(kept) > MAX_VIEWS:
                raise ConfigError(f"a server keeps at most {MAX_VIEWS} views: remove some first.")
            return self._write(SavedViews(sorted(kept, key=lambda view: view.name), self.saved.pins))

    def pin(self, metric: str, *, pinned: bool = True) -> SavedViews:
        """Pin or unpin a metric."""
        with self._lock:
            kept = [one for one in self.saved.pins if one != metric]
            if pinned:
                kept.append(metric)
            if len(kept) > MAX_PINS:
                raise ConfigError(f"a server keeps at most {MAX_PINS} pinned metrics: unpin some first.")
            return self._write(SavedViews(self.saved.views, kept))

    def _write(self, saved: SavedViews) -> SavedViews:
        replace_file(self.path, msgspec.json.encode(saved))
        self.saved = saved
        return saved
