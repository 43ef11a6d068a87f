"""`rl-insight version`."""

from __future__ import annotations

from rl_insight._version import __version__
from rl_insight.cli.console import say


def version() -> None:
    """Show the version."""
    say(f"rl-insight {__version__}")
