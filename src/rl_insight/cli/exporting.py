"""`rl-insight export`: a run, or a part of it, into files for other tools."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from rl_insight.cli.completion import complete_words
from rl_insight.cli.console import counted, say, working
from rl_insight.cli.opening import DataDir, Run, opened_run
from rl_insight.errors import ConfigError, InsightError


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file, or for csv and parquet the directory.")],
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="chrome, otlp, jsonl, rli, csv or parquet.",
            autocompletion=complete_words(lambda: ("chrome", "otlp", "jsonl", "rli", "csv", "parquet")),
        ),
    ] = "chrome",
    run: Run = None,
    start: Annotated[str | None, typer.Option(help="From this moment on: 2026-01-31T12:00:00, or seconds.")] = None,
    end: Annotated[str | None, typer.Option(help="Up to this moment.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this training step.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    lane: Annotated[str | None, typer.Option(help="Only this lane, process or role.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Write a run as a Chrome/Perfetto trace, OTLP JSON, JSON Lines, CSV or Parquet.

    Times are aligned across processes. A file name that ends in .gz is compressed.
    """
    from rl_insight.exchange.exporting.exporter import WRITERS, export_run
    from rl_insight.exchange.exporting.rows import Selection, has_rows
    from rl_insight.store import queries

    if file_format not in WRITERS:
        raise ConfigError(f"format {file_format!r} is unknown: it must be one of {', '.join(WRITERS)}.")
    selection = Selection(start_ns=moment_ns(start), end_ns=moment_ns(end), step=step, session_id=session, lane=lane)
    with opened_run(data_dir, run) as store:
        with store.reader() as cursor:
            run_id = queries.summary(cursor).run_id
            if selection != Selection() and not has_rows(cursor, selection):
                raise InsightError(f"nothing was written: no spans, events or logs of {run_id} match these conditions.")
        with working(f"writing {run_id} as {file_format}"):
            written = export_run(store, file_format, output, selection)
    say(f"Wrote {counted(written, 'record')} to {output}.")


def moment_ns(text: str | None) -> int | None:
    """Parse a time: ISO 8601 (local time unless it has a zone), or seconds since 1970.

    Raises:
        ConfigError: it is neither.
    """
    if text is None:
        return None
    try:
        return round(float(text) * 1e9)
    except (ValueError, OverflowError):
        pass
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1e9)
    except ValueError as error:
        raise ConfigError(
            f"cannot parse {text!r} as a time: write 2026-01-31T12:00:00, or seconds since 1970."
        ) from error
