"""The exceptions that RL-Insight raises on purpose, under one base class."""

from __future__ import annotations


class InsightError(Exception):
    """Base class of every error that RL-Insight raises on purpose."""


class ConfigError(InsightError, ValueError):
    """The configuration cannot be used: an unknown key, a wrong type, a value out of range."""


class SchemaError(InsightError, ValueError):
    """The bytes are not a batch that this version can read; the message says why."""


class UnsupportedVersionError(SchemaError):
    """The batch has a different major schema version; the message names both versions."""


class TooLargeError(SchemaError):
    """The bytes would take too much memory once decoded; the message names the limit."""


class TransportError(InsightError):
    """A batch could not be delivered."""


class BatchRefusedError(TransportError):
    """The receiver will never accept this batch, no matter how often it is sent."""
