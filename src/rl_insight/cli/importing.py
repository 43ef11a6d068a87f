"""`rl-insight import`: imports files of many formats into a run."""

from __future__ import annotations

import signal
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.completion import one_of
from rl_insight.cli.console import say, say_json, warn, working
from rl_insight.cli.exporting import parse_time_ns
from rl_insight.cli.opening import AsJson, destination
from rl_insight.cli.place import current_directory
from rl_insight.errors import InsightError
from rl_insight.words import counted

if TYPE_CHECKING:
    from rl_insight.exchange.importing.importer import Importer, ImportSummary

_NAMED = 5


def _formats() -> tuple[str, ...]:
    from rl_insight.exchange.importing.formats import FORMATS

    return ("auto", *FORMATS)


def import_(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of files.")],
    run: Annotated[
        str | None, typer.Option(help="The run; default the one named in the records, else the file name.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep importing as the files grow, until Ctrl+C.")
    ] = False,
    file_format: Annotated[
        str,
        one_of(
            _formats,
            "--format",
            help="auto, or a format of docs/import-export.md: tensorboard, wandb, verl-log, chrome, ...",
        ),
    ] = "auto",
    origin: Annotated[
        str | None,
        typer.Option(help="The start time of files that have only relative times, as 2026-01-31T12:00:00."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Import recordings into a run: TensorBoard, W&B, verl, prime-rl, AReaL, XTuner, OTLP, Chrome, RL-Insight files.

    Importing a file again adds nothing. Lines that cannot be read are counted and skipped.
    """
    from rl_insight.exchange.importing.importer import Importer, files_of

    total = sum(file.stat().st_size for file in files_of(path))
    done = 0

    def show(file: Path, size: int) -> None:
        nonlocal done
        done += size
        if not follow:
            advance(done, total, file.name)

    with destination() as target, working("importing") as advance:
        importer = Importer(
            target,
            data_dir=current_directory(),
            run_id=run,
            file_format=None if file_format == "auto" else file_format,
            origin_ns=parse_time_ns(origin) or 0,
            on_progress=show,
        )
        if follow:
            _follow(importer, path)
        else:
            importer.add(path)
    summary = importer.summary()
    if not follow and not summary.files and not summary.skipped:
        raise InsightError(f"nothing was imported: {path} has no files of a known format.")
    if as_json:
        say_json(summary)
    else:
        _describe(summary)
    if summary.damaged and not follow:
        raise typer.Exit(1)


def _follow(importer: Importer, path: Path) -> None:
    """Follow until Ctrl+C or SIGTERM, then store everything read so far."""
    stop = Event()
    previous: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, lambda *_: stop.set())
    try:
        say(f"Following {path}. Press Ctrl+C to stop.")
        importer.follow(path, stop)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _describe(summary: ImportSummary) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.formats.items())) or "none"
    rate = summary.records / summary.seconds if summary.seconds else 0.0
    read = f"{counted(summary.records, 'record')} from {counted(summary.files, 'file')}"
    say(f"Read {read} ({kinds}), {rate:,.0f} per second.")
    if summary.runs:
        say(f"Run: {', '.join(summary.runs[:_NAMED])}{' ...' if len(summary.runs) > _NAMED else ''}")
    if summary.duplicate_batches:
        total = summary.duplicate_batches + summary.new_batches
        say(f"{summary.duplicate_batches} of {total} batches were already in the run.")
    if summary.bad:
        warn(f"{counted(summary.bad, 'record')} could not be read. The first: {'; '.join(summary.problems)}")
    if summary.partial:
        warn(f"{counted(summary.partial, 'file')} with a truncated last record.")
    for damage in summary.damaged[:_NAMED]:
        warn(f"{damage}.")
    if len(summary.damaged) > _NAMED:
        warn(f"{counted(len(summary.damaged), 'compressed file')} are damaged in total.")
    if summary.skipped:
        shown = ", ".join(summary.skipped[:_NAMED])
        more = " ..." if len(summary.skipped) > _NAMED else ""
        warn(f"{counted(len(summary.skipped), 'file')} skipped, empty or of unknown format: {shown}{more}")
