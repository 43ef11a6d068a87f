"""`rl-insight import`: files of many formats into a run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.completion import complete_words
from rl_insight.cli.console import bars, say, say_json, warn
from rl_insight.cli.exporting import moment_ns
from rl_insight.cli.opening import AsJson, DataDir, destination
from rl_insight.cli.place import directory_of
from rl_insight.diagnosis.words import counted
from rl_insight.errors import ConfigError, InsightError

if TYPE_CHECKING:
    from rl_insight.exchange.importing.importer import Importer, ImportSummary

_NAMED = 5


def _formats() -> tuple[str, ...]:
    from rl_insight.exchange.importing.formats import FORMATS

    return ("auto", *FORMATS)


def import_(
    path: Annotated[Path, typer.Argument(help="A file, or a directory of files.")],
    run: Annotated[
        str | None, typer.Option(help="The run; default the records' own, else named after the path.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep importing as the files grow, until Ctrl+C.")
    ] = False,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            help="auto, or one of those in docs/import-export.md: tensorboard, wandb, verl-log, chrome, ...",
            autocompletion=complete_words(_formats),
        ),
    ] = "auto",
    origin: Annotated[
        str | None,
        typer.Option(help="When the clock of files without a wall clock began, as 2026-01-31T12:00:00."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Bring recordings into a run: TensorBoard, W&B, verl, prime-rl, AReaL, XTuner, OTLP, Chrome and RL-Insight files.

    A file that is imported twice is not doubled. Lines that cannot be read are counted and left out.
    """
    from rl_insight.exchange.importing.importer import Importer, files_of

    if file_format not in _formats():
        raise ConfigError(f"format {file_format!r} is unknown: it must be one of {', '.join(_formats())}.")
    total = sum(file.stat().st_size for file in files_of(path))
    with destination(data_dir) as target, _progress(total, is_shown=not follow and not as_json) as advance:
        importer = Importer(
            target,
            data_dir=directory_of(data_dir),
            run_id=run,
            file_format=None if file_format == "auto" else file_format,
            origin_ns=moment_ns(origin) or 0,
            on_progress=advance,
        )
        if follow:
            _follow(importer, path)
        else:
            importer.add(path)
    summary = importer.summary()
    if not follow and not summary.files and not summary.skipped:
        raise InsightError(f"nothing was imported: {path} has no files of a known kind.")
    if as_json:
        say_json(summary)
    else:
        _describe(summary)


def _follow(importer: Importer, path: Path) -> None:
    """Follow until Ctrl+C or SIGTERM; what was read by then is stored."""
    stop = Event()
    previous: dict[signal.Signals, Any] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        previous[number] = signal.signal(number, lambda *_: stop.set())
    try:
        say(f"Following {path}; Ctrl+C ends it.")
        importer.follow(path, stop)
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextmanager
def _progress(total: int, *, is_shown: bool) -> Iterator[Callable[[Path, int], None]]:
    """Show a progress bar on terminals."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

    with bars(TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()) as bar:
        if bar is None or not is_shown:
            yield lambda _path, _size: None
            return
        task = bar.add_task("importing", total=total)
        yield lambda path, size: bar.update(task, advance=size, description=path.name)


def _describe(summary: ImportSummary) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(summary.formats.items())) or "none"
    rate = summary.records / summary.seconds if summary.seconds else 0.0
    read = f"{counted(summary.records, 'record')} from {counted(summary.files, 'file')}"
    say(f"Read {read} ({kinds}), {rate:,.0f} per second.")
    if summary.runs:
        say(f"Run: {', '.join(summary.runs[:_NAMED])}{' ...' if len(summary.runs) > _NAMED else ''}")
    if summary.duplicate_batches:
        total = summary.duplicate_batches + summary.new_batches
        say(f"{summary.duplicate_batches} of {total} batches had been imported before.")
    if summary.bad:
        warn(f"{counted(summary.bad, 'record')} could not be read. The first: {'; '.join(summary.problems)}")
    if summary.partial:
        warn(f"{counted(summary.partial, 'file')} with a last record that is cut short; the rest of it was not there.")
    if summary.skipped:
        shown = ", ".join(summary.skipped[:_NAMED])
        more = " ..." if len(summary.skipped) > _NAMED else ""
        warn(f"{counted(len(summary.skipped), 'file')} left out, empty or of no known format: {shown}{more}")
