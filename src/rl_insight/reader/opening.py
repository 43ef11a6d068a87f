"""From a name to a run: on a server, in a data directory, or a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs

from rl_insight.errors import InsightError
from rl_insight.reader.client import ServerClient
from rl_insight.reader.names import NoSuchRunError, find_run
from rl_insight.reader.places import Place, Server, describe, find_place
from rl_insight.reader.rows import Row
from rl_insight.reader.run import Run
from rl_insight.reader.sources import RunSource, ServerSource, StoreSource
from rl_insight.urls import split_http_url

if TYPE_CHECKING:
    from rl_insight.store import RunDirectory

_FILE_ENDING = ".duckdb"


def runs(*, server: str | None = None, token: str | None = None, data_dir: str | Path | None = None) -> list[Row]:
    """List the runs, the one that began last first.

    >>> import rl_insight as insight
    >>> insight.runs()[0]["run_id"]  # doctest: +SKIP
    'grpo-7b-20260131-120000-9f3a'

    Args:
        server: its URL; by default `RL_INSIGHT_SERVER_URL`, else the server of this machine, else the run files here.
        token: what the server asks for; by default `RL_INSIGHT_TOKEN`.
        data_dir: look in this data directory, or at the server that runs on it.

    Raises:
        InsightError: the server cannot be reached, or refused.
    """
    with _run_files():
        return list_runs(find_place(server, token, data_dir))


def open_run(
    name: str | Path | None = None,
    *,
    server: str | None = None,
    token: str | None = None,
    data_dir: str | Path | None = None,
) -> Run:
    """Open a run to read it, also while it is being recorded.

    >>> import rl_insight as insight
    >>> run = insight.open_run("grpo-7b")  # doctest: +SKIP

    Args:
        name: an id, the beginning of one, an experiment's name (its run that began last), the address of a run's page,
            or a `.duckdb` file. By default, the run that began last.
        server: as for `runs`.
        token: as for `runs`.
        data_dir: as for `runs`.

    Raises:
        NoSuchRunError: there is no such run, or several fit; the message names them.
        InsightError: the server cannot be reached, or the file cannot be read.
    """
    text = None if name is None else str(name)
    if text is not None and split_http_url(text) is not None:
        return _open_address(text, token)
    with _run_files():
        return Run(open_source(find_place(server, token, data_dir), text))


@contextmanager
def _run_files() -> Iterator[None]:
    """Say what to do where only the training side is installed, which reads runs through a server alone."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InsightError(
            f"cannot read run files: the package {error.name} is not installed. Start a server or name one with "
            'server=URL, or install what reads files: pip install "rl-insight[server]" (Python 3.11 or newer).'
        ) from error


def _open_address(address: str, token: str | None) -> Run:
    """Open the run that the address of a page shows."""
    parts = split_http_url(address)
    query = parse_qs(parts.query) if parts is not None else {}
    base = address.partition("?")[0].partition("#")[0]
    place = find_place(base, token or next(iter(query.get("token", [])), None))
    return Run(open_source(place, next(iter(query.get("run", [])), None)))


def open_source(place: Place, name: str | None) -> RunSource:
    """Return the answers about the run that a name means, or about a run file, wherever it is.

    Raises:
        NoSuchRunError: there is no such run, or several fit.
        RunNotFoundError: there is no such file.
    """
    if is_run_file(name):
        return _open_file(Path(name or "").expanduser())
    if isinstance(place, Server):
        client = ServerClient(place)
        try:
            return ServerSource(client, find_run(name, client.get("/api/v1/runs"), describe(place)))
        except BaseException:
            client.close()
            raise
    with closing(_directory(place)) as directory:
        run_id = find_run(name, _rows(directory), describe(place))
        path = directory.file_of(run_id)
    return _open_file(path, run_id)


def _open_file(path: Path, run_id: str | None = None) -> StoreSource:
    from rl_insight.store.run_store import open_run_file

    return StoreSource(open_run_file(path), run_id)


def is_run_file(name: str | None) -> bool:
    """Return whether a name is the path of a run file."""
    return name is not None and name.endswith(_FILE_ENDING)


def list_runs(place: Place) -> list[Row]:
    """Return the runs at a place, the one that began last first."""
    if isinstance(place, Server):
        with closing(ServerClient(place)) as client:
            found: list[Row] = client.get("/api/v1/runs")
    else:
        with closing(_directory(place)) as directory:
            found = _rows(directory)
    return [dict(row) for row in found]


def _directory(place: Path) -> RunDirectory:
    from rl_insight.store import RunDirectory

    return RunDirectory(place)


def _rows(directory: RunDirectory) -> list[Row]:
    import msgspec

    found: list[Row] = msgspec.to_builtins(directory.list_runs())
    return found


__all__ = ["NoSuchRunError", "is_run_file", "list_runs", "open_run", "open_source", "runs"]
