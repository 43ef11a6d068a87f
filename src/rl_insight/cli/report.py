"""`rl-insight report`: one HTML file that shows a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rl_insight.cli.console import say, working
from rl_insight.cli.opening import DataDir, Run, ScopeOption, opened_run, scope_of, scope_text
from rl_insight.errors import InsightError


def report(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files to report on instead of a run.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    run: Run = None,
    scope: ScopeOption = "latest",
    data_dir: DataDir = None,
) -> None:
    """Write one HTML file that needs nothing else: it opens from disk, without a network.

    Hotspots, timeline and sessions are of the scope; what is shown step by step is of all steps.
    """
    from rl_insight.exchange.report import write_report
    from rl_insight.store import queries

    chosen = scope_of(scope)
    with opened_run(data_dir, run, paths or ()) as store:
        with store.reader() as cursor:
            run_id = queries.summary(cursor).run_id
            if chosen.step is not None and not queries.hotspots(cursor, chosen, limit=1):
                raise InsightError(f"nothing was written: there are no spans in {scope_text(chosen, run_id)}.")
        with working(f"writing the report of {run_id}"):
            write_report(store, output, chosen)
    say(f"Wrote {output} ({output.stat().st_size / 1e6:.1f} MB).")
