"""How commands get at a run: its file where no server has it open, else a copy that the server sends."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.client import call, directory_of
from rl_insight.cli.transfer import RunTransfer
from rl_insight.errors import ConfigError, InsightError

if TYPE_CHECKING:
    from rl_insight.exchange.importing.destinations import Destination
    from rl_insight.store import RunDirectory, RunStore
    from rl_insight.store.queries import Scope

DataDir = Annotated[str | None, typer.Option(help="Where the server keeps its data; default ~/.rl-insight.")]
Run = Annotated[str | None, typer.Option(help="The run; default the one written last.")]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
ScopeOption = Annotated[str, typer.Option(help="latest (the last step), all, or step=N.")]


def running_record(data_dir: str | None) -> Any:
    """Return the record of the server that runs on a data directory; None when none does."""
    from rl_insight.server.state import read_record

    return read_record(directory_of(data_dir))


@contextmanager
def local_runs(data_dir: str | None, *, threads: int = 2) -> Iterator[RunDirectory]:
    """Lend the directory of runs; for when no server runs there."""
    from rl_insight.store import RunDirectory

    runs = RunDirectory(directory_of(data_dir), threads=threads)
    try:
        yield runs
    finally:
        runs.close()


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
    connection = RunTransfer(record)
    try:
        yield ServerDestination(connection.post_frames)
    finally:
        connection.close()


@contextmanager
def opened_run(data_dir: str | None, run: str | None, paths: Sequence[Path] = ()) -> Iterator[RunStore]:
    """Lend a run: of the data directory, of the server, or made for the moment from files.

    Raises:
        InsightError: there is no such run.
        ConfigError: a run and files were given.
    """
    from rl_insight.store import RunStore

    if paths and run is not None:
        raise ConfigError("give either --run or files, not both.")
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise InsightError(f"there is no file or directory {missing}. A run is chosen by its name with --run.")
    with tempfile.TemporaryDirectory(prefix="rl-insight-") as work:
        if paths:
            with _imported(Path(work), paths) as store:
                yield store
            return
        record = running_record(data_dir)
        if record is None:
            with local_runs(data_dir) as runs, runs.open(run or _latest(runs.list_runs(), data_dir)) as store:
                yield store
            return
        connection = RunTransfer(record)
        try:
            run_id = run
            if run_id is None:
                found = [info["run_id"] for info in call(record, "GET", "/api/v1/runs") if not info["problem"]]
                run_id = found[0] if found else _latest([], data_dir)
            copy = Path(work) / "run.duckdb"
            connection.download_run(run_id, copy)
        finally:
            connection.close()
        with RunStore(copy, min_free_bytes=0) as store:
            yield store


@contextmanager
def _imported(work: Path, paths: Sequence[Path]) -> Iterator[RunStore]:
    """Import files into a run that lives as long as the block."""
    from rl_insight.exchange.importing.destinations import StoreDestination
    from rl_insight.exchange.importing.importer import Importer, default_run
    from rl_insight.store import RunDirectory

    runs = RunDirectory(work, min_free_bytes=0)
    try:
        run_id = default_run(paths[0])
        importer = Importer(StoreDestination(runs), data_dir=work, run_id=run_id)
        for path in paths:
            importer.add(path)
        if not importer.summary().records:
            raise InsightError(f"there is nothing to show in {', '.join(map(str, paths))}.")
        with runs.open(run_id) as store:
            yield store
    finally:
        runs.close()


def _latest(runs: Sequence[Any], data_dir: str | None) -> str:
    for info in runs:
        if not info.problem:
            return str(info.run_id)
    raise InsightError(
        f"there are no runs in {directory_of(data_dir)}. Record one, or bring one in with `rl-insight import`."
    )


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
