"""`rl-insight report`: one HTML file that shows a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_insight.cli.console import say, working
from rl_insight.cli.opening import DataDir, Run, ScopeOption, opened_run, run_id_of, scope_of, server_with
from rl_insight.cli.transfer import fetch_file


def report(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files to report on instead of a run.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    run: Run = None,
    scope: ScopeOption = "latest",
    transcripts: Annotated[bool, typer.Option(help="Put the recorded texts of sessions into it, too.")] = False,
    data_dir: DataDir = None,
) -> None:
    """Write one HTML file that needs nothing else: it opens from disk, without a network.

    Hotspots, timeline and sessions are of the scope; what is shown step by step is of all steps.
    """
    from rl_insight.exchange.report import check_scope, write_report

    chosen = scope_of(scope)
    server = server_with(data_dir, run, paths or ())
    if server is not None:
        # The server writes it, so that the run stays where it is.
        run_id = run_id_of(data_dir, run)
        conditions = {"run": run_id, "step": chosen.step, "last_steps": chosen.last_steps}
        conditions["transcripts"] = "true" if transcripts else None
        fetch_file(server, "/api/v1/report", conditions, output, f"waiting for the report of {run_id}")
    else:
        with opened_run(data_dir, run, paths or ()) as store, working("writing the report"):
            with store.reader() as cursor:
                check_scope(cursor, chosen)
            write_report(store, output, chosen, transcripts=transcripts)
    say(f"Wrote {output} ({output.stat().st_size / 1e6:.1f} MB).")
