"""Opens runs by name: on a server, in a data directory, or from a file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import parse_qs

from rl_insight.config.paths import Server
from rl_insight.errors import InsightError
from rl_insight.reader.client import ServerClient
from rl_insight.reader.names import NoSuchRunError, find_run
from rl_insight.reader.places import Place, describe, find_place
from rl_insight.reader.rows import Row
from rl_insight.reader.run import Run
from rl_insight.reader.sources import RunSource, ServerSource, StoreSource
from rl_insight.urls import split_http_url

_FILE_ENDING = ".duckdb"


def runs(*, server: str | None = None, token: str | None = None, data_dir: str | Path | None = None) -> list[Row]:
    """List the runs, latest start first.

    >>> import rl_insight as insight
    >>> insight.runs()[0]["run_id"]  # doctest: +SKIP
    'grpo-7b-20260131-120000-9f3a'

    Args:
        server: a server's URL; by default `RL_INSIGHT_SERVER_URL`, else this machine's server, else its run files.
        token: the server's access token; by default `RL_INSIGHT_TOKEN`.
        data_dir: use this data directory, or the server that runs on it.

    Raises:
        InsightError: the server cannot be reached, or refused the request.
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
    """Open a run for reading, even while it is being recorded.

    >>> import rl_insight as insight
    >>> run = insight.open_run("grpo-7b")  # doctest: +SKIP

    Args:
        name: an id, a unique prefix of one, an experiment's name (its latest run), the URL of a run's page, or a
            `.duckdb` file. By default, the run that started last.
        server: as for `runs`.
        token: as for `runs`.
        data_dir: as for `runs`.

    Raises:
        NoSuchRunError: there is no such run, or several match; the message lists them.
        InsightError: the server cannot be reached, or the file cannot be read.
    """
    text = None if name is None else str(name)
    if text is not None and split_http_url(text) is not None:
        return _open_address(text, token)
    with _run_files():
        return Run(open_source(find_place(server, token, data_dir), text))


@contextmanager
def _run_files() -> Iterator[None]:
    """Explain what to do if only the training side is installed, which can read runs only through a server."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InsightError(
            f"cannot read run files: the package {error.name} is not installed. Start a server or pass one with "
            'server=URL, or install the file reader: pip install "rl-insight[server]" (Python 3.11 or newer).'
        ) from error


def _open_address(address: str, token: str | None) -> Run:
    """Open the run of a page's URL."""
    parts = split_http_url(address)
    query = parse_qs(parts.query) if parts is not None else {}
    base = address.partition("?")[0].partition("#")[0]
    place = find_place(base, token or next(iter(query.get("token", [])), None))
    return Run(open_source(place, next(iter(query.get("run", [])), None)))


def open_source(place: Place, name: str | None) -> RunSource:
    """Open the run that a name refers to, or a run file; errors are those of `open_run`."""
    if is_run_file(name):
        return _open_file(Path(name or "").expanduser())
    if isinstance(place, Server):
        client = ServerClient(place)
        try:
            return ServerSource(client, find_run(name, client.get("/api/v1/runs"), describe(place)))
        except BaseException:
            client.close()
            raise
    from rl_insight.store.run_files import file_name

    run_id = find_run(name, list_runs(place), describe(place))
    return _open_file(place / "runs" / file_name(run_id), run_id)


def _open_file(path: Path, run_id: str | None = None) -> StoreSource:
    from rl_insight.store.run_store import open_run_file

    return StoreSource(open_run_file(path), run_id)


def is_run_file(name: str | None) -> bool:
    """Return whether a name is the path of a run file."""
    return name is not None and name.endswith(_FILE_ENDING)


def list_runs(place: Place) -> list[Row]:
    """Return the runs at a place, latest start first."""
    if isinstance(place, Server):
        with closing(ServerClient(place)) as client:
            found: list[Row] = client.get("/api/v1/runs")
            return found
    import msgspec

    from rl_insight.store import RunDirectory

    with closing(RunDirectory(place)) as directory:
        listed: list[Row] = msgspec.to_builtins(directory.list_runs())
        return listed


__all__ = ["NoSuchRunError", "is_run_file", "list_runs", "open_run", "open_source", "runs"]
