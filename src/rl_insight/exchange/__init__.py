"""Import of files in many formats, and export of runs as files and reports."""

from rl_insight.exchange.errors import ExchangeError

__all__ = ["ExchangeError"]
