"""`rl-insight report` writes a run as one HTML file; `rl-insight open` opens its page in a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, urlencode

import typer

from rl_insight.cli.console import say, working
from rl_insight.cli.opening import (
    Run,
    RunWord,
    RunWords,
    ScopeOption,
    given_run,
    opened_run,
    run_id_of,
    run_or_files,
    scope_of,
    server_with,
)
from rl_insight.cli.place import required_server
from rl_insight.cli.transfer import fetch_file
from rl_insight.words import size_text


def report(
    words: RunWords = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    run: Run = None,
    scope: ScopeOption = "latest",
    transcripts: Annotated[bool, typer.Option(help="Include the recorded text of sessions.")] = False,
) -> None:
    """Write one self-contained HTML file: it opens from disk, without a network.

    Hotspots, timeline and sessions cover the scope; charts by step cover all steps.
    """
    from rl_insight.exchange.report import check_scope, write_report

    run, paths = run_or_files(words, run)
    chosen = scope_of(scope)
    if server_with(run, paths) is not None:
        # The server writes it, so that the run need not be copied.
        run_id = run_id_of(run)
        conditions = {"run": run_id, "step": chosen.step, "last_steps": chosen.last_steps}
        conditions["transcripts"] = "true" if transcripts else None
        fetch_file("/api/v1/report", conditions, output, f"waiting for the report of {run_id}")
    else:
        with opened_run(run, paths) as store, working("writing the report"):
            with store.reader() as cursor:
                check_scope(cursor, chosen)
            write_report(store, output, chosen, transcripts=transcripts)
    say(f"Wrote {output} ({size_text(output.stat().st_size)}).")


def open_(
    word: RunWord = None,
    run: Run = None,
    only_print: Annotated[bool, typer.Option("--print", help="Print the URL, open nothing.")] = False,
) -> None:
    """Open a run's page in a browser, or print its URL if there is no browser."""
    server = required_server()
    query = {"run": run_id_of(given_run(word, run))} | ({"token": server.token} if server.token else {})
    address = f"{server.url.rstrip('/')}/?{urlencode(query, quote_via=quote)}"
    if only_print or not webbrowser.open(address):
        say(address)
