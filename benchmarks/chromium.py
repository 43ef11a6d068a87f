"""Where Chromium is, for all that looks at the page in a real browser."""

from __future__ import annotations

import shutil

# The one without windows takes a sixth less CPU time.
_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")


def chromium_path() -> str | None:
    """Return the first Chromium that is installed."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)
