"""The errors of the store."""

from __future__ import annotations

from rl_insight.errors import InsightError


class StoreError(InsightError):
    """Base of the store's errors: the operation failed and changed nothing."""


class StoreCorruptError(StoreError):
    """A file is damaged, truncated, or not a run file; the caller can move it aside and continue."""


class StorePageError(StoreError):
    """Pages of an open file are damaged; everything else can still be read."""


class StoreBusyError(StoreError):
    """Another process, or another part of this one, is using the file."""


class StoreFullError(StoreError):
    """The disk is full; nothing was written, and writing resumes when there is space."""


class StoreVersionError(StoreError):
    """The file was written by a newer version of RL-Insight; the message names both versions."""


class StoreOverloadedError(StoreError):
    """The write queue is full; retry after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RunNotFoundError(StoreError, KeyError):
    """There is no run with that name."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes.
        return str(self.args[0])


class RunExistsError(StoreError):
    """A run with that name already exists."""


class NoRunError(StoreError):
    """The run file is empty: no process has reported yet."""


class QueryError(InsightError, ValueError):
    """A query is invalid; the message says why."""


class NotFoundError(QueryError):
    """The run has no such id."""


class QueryTimeoutError(QueryError):
    """The query exceeded its time limit."""
