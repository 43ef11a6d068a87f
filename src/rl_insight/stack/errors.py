"""The errors of the stack."""

from __future__ import annotations

from rl_insight.errors import ConfigError, InsightError


class StackError(InsightError):
    """Prometheus, Tempo or Grafana could not be started, stopped or installed; the message says why."""


class MissingProgramError(StackError, ConfigError):
    """A program that the stack needs is missing or too old; the message says how to get it."""
