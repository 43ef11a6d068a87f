"""The errors of imports, exports and reports."""

from __future__ import annotations

from rl_insight.errors import InsightError


class ExchangeError(InsightError):
    """A file cannot be read or written; the message says why."""


class NothingSelectedError(ExchangeError):
    """Nothing in a run matches the conditions; the message names the run."""
