"""`rl-insight version`, and the options of the root."""

from __future__ import annotations

import logging
from enum import Enum
from typing import Annotated

import typer

from rl_insight._version import __version__
from rl_insight.cli.console import say


class LogLevel(str, Enum):
    """How much is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def version() -> None:
    """Show the version."""
    say(f"rl-insight {__version__}")


def _show_and_exit(*, is_wanted: bool) -> None:
    if is_wanted:
        version()
        raise typer.Exit


def root(
    *,
    is_wanted: Annotated[  # noqa: ARG001 -- its callback does it
        bool, typer.Option("--version", callback=_show_and_exit, is_eager=True, help="Show the version and exit.")
    ] = False,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(case_sensitive=False, help="How much this command logs, and the server that it starts."),
    ] = None,
) -> None:
    """See where the time goes in reinforcement-learning post-training, live."""
    if log_level is not None:
        logging.basicConfig(level=log_level.name)


def log_words(context: typer.Context) -> list[str]:
    """Return `--log-level` of the root as a setting of the server."""
    level: LogLevel | None = context.find_root().params.get("log_level")
    return [] if level is None else [f"log_level={level.value}"]
