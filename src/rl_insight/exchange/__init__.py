"""Import and export: files of many formats into runs, and runs into files and reports."""

from rl_insight.exchange.errors import ExchangeError

__all__ = ["ExchangeError"]
