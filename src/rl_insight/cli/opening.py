"""How commands get at a run: they ask its server, or open its file; none copies it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_insight.cli.completion import complete_run, complete_words
from rl_insight.cli.console import working
from rl_insight.cli.place import directory_of, place_of, running_record
from rl_insight.cli.transfer import RunTransfer
from rl_insight.errors import ConfigError, InsightError

if TYPE_CHECKING:
    from rl_insight.exchange.importing.destinations import Destination
    from rl_insight.reader.places import Server
    from rl_insight.reader.sources import RunSource
    from rl_insight.store import RunDirectory, RunStore
    from rl_insight.store.connections import RunFile
    from rl_insight.store.queries import Scope

DataDir = Annotated[str | None, typer.Option(help="Where the server keeps its data; default ~/.rl-insight.")]
Run = Annotated[
    str | None,
    typer.Option(
        help="The run: its id, the beginning of it, or its experiment; default the one that began last.",
        autocompletion=complete_run,
    ),
]
RunWord = Annotated[
    str | None, typer.Argument(metavar="[RUN]", help="The run, in place of --run.", autocompletion=complete_run)
]
RunName = Annotated[
    str, typer.Argument(help="A run: its id, the beginning of it, or its experiment.", autocompletion=complete_run)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScopeOption = Annotated[
    str,
    typer.Option(
        help="latest (the last step), all, or step=N.",
        autocompletion=complete_words(lambda: ("latest", "all", "step=")),
    ),
]


def given_run(word: str | None, run: str | None) -> str | None:
    """Return the run that a command line names, as a word or with `--run`.

    Raises:
        ConfigError: it names two.
    """
    if word is not None and run is not None:
        raise ConfigError(f"give one run, not both {word!r} and --run {run}.")
    return run if word is None else word


@contextmanager
def local_runs(data_dir: str | None, *, threads: int = 2) -> Iterator[RunDirectory]:
    """Lend the directory of runs; for when no server runs there."""
    from rl_insight.store import RunDirectory

    with closing(RunDirectory(directory_of(data_dir), threads=threads)) as runs:
        yield runs


@contextmanager
def destination(data_dir: str | None) -> Iterator[Destination]:
    """Lend the place that imported records go to: the running server, or the data directory itself."""
    from rl_insight.exchange.importing.destinations import ServerDestination, StoreDestination

    record = running_record(data_dir)
    if record is None:
        # A second thread of the store would make writing no faster and cost a tenth of it.
        with local_runs(data_dir, threads=1) as runs:
            yield StoreDestination(runs)
        return
    with closing(RunTransfer(record)) as connection:
        yield ServerDestination(connection.post_frames)


def server_with(data_dir: str | None, run: str | None, paths: Sequence[Path] = ()) -> Server | None:
    """Return the server that has the run a command means; None when the command opens a file itself."""
    from rl_insight.reader.opening import is_run_file

    return None if paths or is_run_file(run) else running_record(data_dir)


@contextmanager
def opened_run(data_dir: str | None, run: str | None, paths: Sequence[Path] = ()) -> Iterator[RunFile]:
    """Lend a run file: one of the data directory, on which no server runs, or any other, or one made from files.

    Raises:
        InsightError: there is no such run.
        ConfigError: a run and files were given.
    """
    from rl_insight.reader.opening import is_run_file
    from rl_insight.store.run_store import open_run_file

    if paths and run is not None:
        raise ConfigError("give either --run or files, not both.")
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise InsightError(f"there is no file or directory {missing}. A run is chosen by its name with --run.")
    if len(paths) == 1 and is_run_file(str(paths[0])):
        run, paths = str(paths[0]), ()
    if paths:
        with tempfile.TemporaryDirectory(prefix="rl-insight-") as work, _imported(Path(work), paths) as made:
            yield made
        return
    path = Path(run or "").expanduser() if is_run_file(run) else _file_of(data_dir, run_id_of(data_dir, run))
    with closing(open_run_file(path)) as store:
        yield store


def _file_of(data_dir: str | None, run_id: str) -> Path:
    with local_runs(data_dir) as runs:
        return runs.file_of(run_id)


@contextmanager
def asked_run(data_dir: str | None, run: str | None, paths: Sequence[Path] = ()) -> Iterator[RunSource]:
    """Lend a run to ask: through the server if one has it open, so that nothing is copied.

    Raises:
        InsightError: there is no such run.
        ConfigError: a run and files were given.
    """
    from rl_insight.reader.opening import open_source
    from rl_insight.reader.sources import StoreSource

    if paths:
        with opened_run(data_dir, run, paths) as store:
            yield StoreSource(store)
        return
    with working("opening the run"):
        source = open_source(place_of(data_dir), run)
    with closing(source):
        yield source


def run_id_of(data_dir: str | None, run: str | None) -> str:
    """Return the id of the run that a command means.

    Raises:
        NoSuchRunError: there is none, or several fit.
    """
    from rl_insight.reader.names import find_run
    from rl_insight.reader.opening import list_runs
    from rl_insight.reader.places import describe

    place = place_of(data_dir)
    return find_run(run, list_runs(place), describe(place))


@contextmanager
def _imported(work: Path, paths: Sequence[Path]) -> Iterator[RunStore]:
    """Import files into a run that exists as long as the block."""
    from rl_insight.exchange.importing.destinations import StoreDestination
    from rl_insight.exchange.importing.formats import default_run
    from rl_insight.exchange.importing.importer import Importer
    from rl_insight.store import RunDirectory

    with closing(RunDirectory(work, min_free_bytes=0)) as runs:
        run_id = default_run(paths[0])
        importer = Importer(StoreDestination(runs), data_dir=work, run_id=run_id)
        with working(f"reading {', '.join(path.name for path in paths[:3])}"):
            for path in paths:
                importer.add(path)
        if not importer.summary().records:
            raise InsightError(f"there is nothing to show in {', '.join(map(str, paths))}.")
        with runs.open(run_id) as store:
            yield store


def scope_of(text: str) -> Scope:
    """Return what a scope on the command line means.

    Raises:
        ConfigError: it means nothing.
    """
    from rl_insight.store.queries import Scope

    if text == "all":
        return Scope()
    if text == "latest":
        return Scope(last_steps=1)
    name, _, number = text.partition("=")
    if name != "step" or not number.lstrip("-").isdecimal() or len(number) > 18:
        raise ConfigError(f"scope {text!r} is unknown: it must be latest, all or step=N.")
    return Scope(step=int(number))


def scope_text(scope: Scope, run_id: str) -> str:
    """Return a scope for messages: `step 7 of grpo-7b`."""
    if scope.step is not None:
        return f"step {scope.step} of {run_id}"
    return f"the latest step of {run_id}" if scope.last_steps is not None else run_id
