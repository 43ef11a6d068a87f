"""`rl-insight open`: the page of a run, in a browser."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from rl_insight.cli.console import say
from rl_insight.cli.opening import DataDir, Run, RunWord, given_run, run_id_of
from rl_insight.cli.place import running_server


def open_(
    word: RunWord = None,
    run: Run = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the address, open nothing.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Open a run's page in a browser, or print its address where there is none."""
    server = running_server(data_dir)
    query = {"run": run_id_of(data_dir, given_run(word, run))} | ({"token": server.token} if server.token else {})
    address = f"{server.url.rstrip('/')}/?{urlencode(query, quote_via=quote)}"
    if only_print or not webbrowser.open(address):
        say(address)
