"""`rl-insight export`: a run, or a part of it, into files for other tools."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.completion import complete_words
from rl_insight.cli.console import say, working
from rl_insight.cli.opening import DataDir, Run, opened_run, run_id_of, server_with
from rl_insight.cli.transfer import fetch_file
from rl_insight.diagnosis.words import counted
from rl_insight.errors import ConfigError

if TYPE_CHECKING:
    from rl_insight.reader.places import Server

_PATH = "/api/v1/export"


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
    import msgspec

    from rl_insight.exchange.exporting.exporter import WRITERS, check_selection, export_run
    from rl_insight.exchange.exporting.rows import Selection

    if file_format not in WRITERS:
        raise ConfigError(f"format {file_format!r} is unknown: it must be one of {', '.join(WRITERS)}.")
    selection = Selection(start_ns=moment_ns(start), end_ns=moment_ns(end), step=step, session_id=session, lane=lane)
    server = server_with(data_dir, run)
    if server is not None:
        conditions = {"run": run_id_of(data_dir, run), "format": file_format, **msgspec.structs.asdict(selection)}
        written = _fetch(server, conditions, output)
    else:
        with opened_run(data_dir, run) as store, working(f"writing {output.name}"):
            with store.reader() as cursor:
                check_selection(cursor, selection)
            written = export_run(store, file_format, output, selection)
    say(f"Wrote {counted(written, 'record')} to {output}.")


def _fetch(server: Server, conditions: dict[str, Any], output: Path) -> int:
    """Have the server write the export, so that the run stays where it is; returns how many records it has."""
    import zipfile

    from rl_insight.exchange.exporting.exporter import DIRECTORIES
    from rl_insight.exchange.exporting.writers.output import output_directory
    from rl_insight.server.routes.exports import RECORDS_HEADER

    doing = f"waiting for the export of {conditions['run']}"
    if conditions["format"] in DIRECTORIES:
        with output_directory(output) as directory:
            archive = directory / "archive.zip"
            headers = fetch_file(server, _PATH, conditions, archive, doing)
            with zipfile.ZipFile(archive) as packed:
                packed.extractall(directory)
            archive.unlink()
    else:
        conditions["gzip"] = "true" if output.suffix == ".gz" else None
        headers = fetch_file(server, _PATH, conditions, output, doing)
    return int(headers[RECORDS_HEADER])


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
