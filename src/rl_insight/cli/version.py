"""`rl-insight version`, and the same as an option of the root."""

from __future__ import annotations

from typing import Annotated

import typer

from rl_insight._version import __version__
from rl_insight.cli.console import say


def version() -> None:
    """Show the version."""
    say(f"rl-insight {__version__}")


def _show_and_exit(*, is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


def root(
    *,
    is_wanted: Annotated[
        bool, typer.Option("--version", callback=_show_and_exit, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """See where the time goes in reinforcement-learning post-training, live."""
