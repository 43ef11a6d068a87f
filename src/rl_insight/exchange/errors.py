"""What can go wrong between files and runs."""

from __future__ import annotations

from rl_insight.errors import InsightError


class ExchangeError(InsightError):
    """A file cannot be read or written as asked; the message says why."""


class NothingSelectedError(ExchangeError):
    """Nothing of a run fits the conditions; the message names the run."""
