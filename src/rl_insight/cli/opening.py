"""How commands read a run: through its server, or from its file, without copying it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_insight.cli.completion import complete_run
from rl_insight.cli.console import working
from rl_insight.cli.place import current_directory, current_place, current_server
from rl_insight.cli.transfer import RunTransfer
from rl_insight.errors import ConfigError, InsightError

if TYPE_CHECKING:
    from rl_insight.config.paths import Server
    from rl_insight.exchange.importing.destinations import Destination
    from rl_insight.reader.sources import RunSource
    from rl_insight.store import RunDirectory, RunStore
    from rl_insight.store.connections import RunFile
    from rl_insight.store.queries import Scope

Run = Annotated[
    str | None,
    typer.Option(
        help="The run: its id, a unique prefix of it, or its experiment; default the most recent one.",
        autocompletion=complete_run,
    ),
]
RunWord = Annotated[
    str | None, typer.Argument(metavar="RUN", help="The run; same as --run.", autocompletion=complete_run)
]
RunWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RUN | FILES", help="The run, same as --run; or files to read.", autocompletion=complete_run
    ),
]
RunName = Annotated[
    str, typer.Argument(help="A run: its id, a unique prefix of it, or its experiment.", autocompletion=complete_run)
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ScopeOption = Annotated[
    str,
    typer.Option(
        help="latest (the last step), all, or step=N.",
        autocompletion=lambda incomplete: [one for one in ("latest", "all", "step=") if one.startswith(incomplete)],
    ),
]


def given_run(word: str | None, run: str | None) -> str | None:
    """Return the run given as an argument or with `--run`, but not both."""
    if word is not None and run is not None:
        raise ConfigError(f"give one run, not both {word!r} and --run {run}.")
    return run if word is None else word


def run_or_files(words: Sequence[str] | None, run: str | None) -> tuple[str | None, list[Path]]:
    """Return the run given as an argument or with `--run`, or the files given as arguments."""
    if not words:
        return run, []
    given_run(" ".join(words), run)
    missing = next((word for word in words if not Path(word).exists()), None)
    if missing is None:
        return None, [Path(word) for word in words]
    if len(words) == 1 and os.sep not in missing:
        return missing, []
    raise InsightError(f"there is no file or directory {missing}.")


@contextmanager
def local_runs(*, threads: int = 2) -> Iterator[RunDirectory]:
    """Open the runs of the data directory, when no server is using it."""
    from rl_insight.store import RunDirectory

    with closing(RunDirectory(current_directory(), threads=threads)) as runs:
        yield runs


@contextmanager
def destination() -> Iterator[Destination]:
    """Open the destination of imported records: the server, or the data directory itself."""
    from rl_insight.exchange.importing.destinations import ServerDestination, StoreDestination

    server = current_server()
    if server is None:
        # A second store thread would not make writing faster, and would slow it by 10%.
        with local_runs(threads=1) as runs:
            yield StoreDestination(runs)
        return
    with closing(RunTransfer(server)) as connection:
        yield ServerDestination(connection.post_frames)


def server_with(run: str | None, paths: Sequence[Path] = ()) -> Server | None:
    """Return the server that has the run; None if the command opens a file itself."""
    from rl_insight.reader.opening import is_run_file

    return None if paths or is_run_file(run) else current_server()


@contextmanager
def opened_run(run: str | None, paths: Sequence[Path] = ()) -> Iterator[RunFile]:
    """Open a run file: from the data directory if no server uses it, from elsewhere, or imported from files."""
    from rl_insight.reader.opening import is_run_file
    from rl_insight.store.run_store import open_run_file

    if len(paths) == 1 and is_run_file(str(paths[0])):
        run, paths = str(paths[0]), ()
    if paths:
        with tempfile.TemporaryDirectory(prefix="rl-insight-") as work, _imported(Path(work), paths) as made:
            yield made
        return
    if is_run_file(run):
        path = Path(run or "").expanduser()
    else:
        run_id = run_id_of(run)
        with local_runs() as runs:
            path = runs.file_of(run_id)
    with closing(open_run_file(path)) as store:
        yield store


@contextmanager
def asked_run(run: str | None, paths: Sequence[Path] = ()) -> Iterator[RunSource]:
    """Open a run to query, through the server if one has it open."""
    from rl_insight.reader.opening import open_source
    from rl_insight.reader.sources import StoreSource

    if paths:
        with opened_run(run, paths) as store:
            yield StoreSource(store)
        return
    with working("opening the run"):
        source = open_source(current_place(), run)
    with closing(source):
        yield source


def run_id_of(run: str | None) -> str:
    """Return the id of a run given by name; without a name, of the most recent run."""
    from rl_insight.reader.names import find_run
    from rl_insight.reader.opening import list_runs
    from rl_insight.reader.places import describe

    place = current_place()
    return find_run(run, list_runs(place), describe(place))


@contextmanager
def _imported(work: Path, paths: Sequence[Path]) -> Iterator[RunStore]:
    """Import files into a temporary run."""
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
    """Parse a scope of the command line."""
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
