"""What can go wrong in the store, each with its own type."""

from __future__ import annotations

from rl_insight.errors import InsightError


class StoreError(InsightError):
    """Base of the store's errors: the operation failed and changed nothing."""


class StoreCorruptError(StoreError):
    """A file is damaged, cut short, or no run file at all; the caller can set it aside and continue."""


class StorePageError(StoreError):
    """Pages of an open file are damaged; what does not need them can still be read."""


class StoreBusyError(StoreError):
    """Another process, or another part of this one, is using the file."""


class StoreFullError(StoreError):
    """There is no room on the disk; nothing was written, and it works again when there is room."""


class StoreVersionError(StoreError):
    """The file was written by a newer version of RL-Insight; the message names both versions."""


class StoreOverloadedError(StoreError):
    """More is waiting to be written than the bound allows; try again after `retry_after_s`."""

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RunNotFoundError(StoreError, KeyError):
    """There is no run of that name."""

    def __str__(self) -> str:
        # KeyError would show the message in quotes.
        return str(self.args[0])


class RunExistsError(StoreError):
    """A run of that name is here already."""


class NoRunError(StoreError):
    """The run file is empty: no process has reported yet."""


class QueryError(InsightError, ValueError):
    """A question that cannot be answered as asked; the message says what is wrong with it."""


class NotFoundError(QueryError):
    """The run has nothing of that id."""


class QueryTimeoutError(QueryError):
    """The query took longer than it was allowed to."""
