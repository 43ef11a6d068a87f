"""Exports runs to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from rl_insight.exchange.errors import ExchangeError, NothingSelectedError
from rl_insight.exchange.exporting.rows import Selection, has_rows
from rl_insight.exchange.exporting.writers.batches import write_frames, write_otlp, write_records
from rl_insight.exchange.exporting.writers.chrome import write_chrome
from rl_insight.exchange.exporting.writers.tables import write_csv, write_parquet
from rl_insight.store import queries
from rl_insight.store.connections import RunFile
from rl_insight.store.queries import Cursor

Writer = Callable[[Cursor, Path, Selection], int]

WRITERS: Final[dict[str, Writer]] = {
    "chrome": write_chrome,
    "otlp": write_otlp,
    "jsonl": write_records,
    "rli": write_frames,
    "csv": write_csv,
    "parquet": write_parquet,
}
"""The writer of each format."""
DIRECTORIES: Final = frozenset({"csv", "parquet"})
"""The formats that create a directory with one file per table."""


def check_selection(cursor: Cursor, selection: Selection) -> None:
    """Raise if nothing in a run matches the conditions.

    Raises:
        NothingSelectedError: nothing does.
    """
    if selection != Selection() and not has_rows(cursor, selection):
        run_id = queries.summary(cursor).run_id
        raise NothingSelectedError(f"nothing was written: no spans, events or logs of {run_id} match these conditions.")


def export_run(store: RunFile, file_format: str, path: Path, selection: Selection | None = None) -> int:
    """Write a run, or a part of it, to a file or directory; return the number of records.

    >>> export_run(store, "chrome", Path("trace.json.gz"), Selection(step=7))  # doctest: +SKIP

    Raises:
        ExchangeError: the format is unknown, or the path cannot be written.
    """
    writer = WRITERS.get(file_format)
    if writer is None:
        raise ExchangeError(f"format {file_format!r} is unknown: it must be one of {', '.join(WRITERS)}.")
    with store.reader() as cursor:
        return writer(cursor, path, selection or Selection())
