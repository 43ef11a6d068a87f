"""The embedded store: DuckDB, one file per run, written by one thread and read by many."""

from rl_insight.store.errors import (
    NoRunError,
    QueryError,
    QueryTimeoutError,
    RunExistsError,
    RunNotFoundError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreOverloadedError,
    StoreVersionError,
)
from rl_insight.store.run_files import RunInfo
from rl_insight.store.run_store import RunStore
from rl_insight.store.runs import RunDirectory
from rl_insight.store.writer import CommitHook, StoreWriter, WriterStatus

__all__ = [
    "CommitHook",
    "NoRunError",
    "QueryError",
    "QueryTimeoutError",
    "RunDirectory",
    "RunExistsError",
    "RunInfo",
    "RunNotFoundError",
    "RunStore",
    "StoreBusyError",
    "StoreCorruptError",
    "StoreError",
    "StoreFullError",
    "StoreOverloadedError",
    "StoreVersionError",
    "StoreWriter",
    "WriterStatus",
]
