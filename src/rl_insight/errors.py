"""The exceptions that RL-Insight raises on purpose, under one base class."""

from __future__ import annotations


class InsightError(Exception):
    """Base class of every error that RL-Insight raises on purpose."""


class ConfigError(InsightError, ValueError):
    """The configuration cannot be used: an unknown key, a wrong type, a value out of range."""


class SchemaError(InsightError, ValueError):
    """Bytes that are not a batch this version can read; the message says what is wrong with them."""


class UnsupportedVersionError(SchemaError):
    """A batch of another major schema version; the message names both versions."""


class TooLargeError(SchemaError):
    """Bytes that would take too much memory once decoded; the message names the limit."""


class TransportError(InsightError):
    """A batch could not be delivered; `retry_after_s` is how long the receiver asks to wait."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BatchRefusedError(TransportError):
    """The receiver will never take this batch, however often it is sent."""
