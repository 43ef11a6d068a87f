"""The command line: `rl-insight`."""

from rl_insight.cli.app import main

__all__ = ["main"]
