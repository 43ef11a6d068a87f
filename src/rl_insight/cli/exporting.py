"""`rl-insight export`: a run, or a part of it, as files for other tools."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from rl_insight.cli.completion import one_of
from rl_insight.cli.console import say, working
from rl_insight.cli.opening import Run, RunWord, given_run, opened_run, run_id_of, server_with
from rl_insight.cli.transfer import fetch_file
from rl_insight.errors import ConfigError
from rl_insight.words import counted

_PATH = "/api/v1/export"
_FORMATS = ("chrome", "otlp", "jsonl", "rli", "csv", "parquet")


def export(
    output: Annotated[Path, typer.Option("--output", "-o", help="The file; for csv and parquet, a directory.")],
    word: RunWord = None,
    file_format: Annotated[
        str,
        one_of(lambda: _FORMATS, "--format", help="chrome, otlp, jsonl, rli, csv or parquet."),
    ] = "chrome",
    run: Run = None,
    start: Annotated[
        str | None, typer.Option(help="From this time on: 2026-01-31T12:00:00, or seconds since 1970.")
    ] = None,
    end: Annotated[str | None, typer.Option(help="Up to this time.")] = None,
    step: Annotated[int | None, typer.Option(help="Only this training step.")] = None,
    session: Annotated[str | None, typer.Option(help="Only this session.")] = None,
    lane: Annotated[str | None, typer.Option(help="Only this lane, process or role.")] = None,
) -> None:
    """Write a run as a Chrome/Perfetto trace, OTLP JSON, JSON Lines, CSV or Parquet.

    Times are aligned across processes. A file whose name ends in .gz is compressed.
    """
    import msgspec

    from rl_insight.exchange.exporting.exporter import check_selection, export_run
    from rl_insight.exchange.exporting.rows import Selection

    selection = Selection(
        start_ns=parse_time_ns(start), end_ns=parse_time_ns(end), step=step, session_id=session, lane=lane
    )
    run = given_run(word, run)
    if server_with(run) is not None:
        conditions = {"run": run_id_of(run), "format": file_format, **msgspec.structs.asdict(selection)}
        written = _fetch(conditions, output)
    else:
        with opened_run(run) as store, working(f"writing {output.name}"):
            with store.reader() as cursor:
                check_selection(cursor, selection)
            written = export_run(store, file_format, output, selection)
    say(f"Wrote {counted(written, 'record')} to {output}.")


def _fetch(conditions: dict[str, Any], output: Path) -> int:
    """Have the server write the export, so that the run need not be copied; returns the number of records."""
    import zipfile

    from rl_insight.exchange.exporting.exporter import DIRECTORIES
    from rl_insight.exchange.exporting.writers.output import output_directory
    from rl_insight.server.routes.exports import RECORDS_HEADER

    doing = f"waiting for the export of {conditions['run']}"
    if conditions["format"] in DIRECTORIES:
        with output_directory(output) as directory:
            archive = directory / "archive.zip"
            headers = fetch_file(_PATH, conditions, archive, doing)
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(directory)
            archive.unlink()
    else:
        conditions["gzip"] = "true" if output.suffix == ".gz" else None
        headers = fetch_file(_PATH, conditions, output, doing)
    return int(headers[RECORDS_HEADER])


def parse_time_ns(text: str | None) -> int | None:
    """Parse a time: ISO 8601 (local time unless it has a zone), or seconds since 1970."""
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
