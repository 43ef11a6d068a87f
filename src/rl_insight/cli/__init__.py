"""The command line: `rl-insight`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; if only the training side is installed, print what to install."""
    try:
        from rl_insight.cli.app import main as run
    except ImportError as error:
        sys.stderr.write(
            f"rl-insight: the command line needs the package {error.name}, which is not installed. "
            'Install the server: pip install "rl-insight[server]" (Python 3.11 or newer).\n'
        )
        return 2
    return run(arguments)
