"""`rl-insight sessions`: the sessions of a run, as a table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_insight.cli.console import say, say_json, say_table
from rl_insight.cli.hotspots import duration_text, say_latest
from rl_insight.cli.opening import AsJson, DataDir, Run, ScopeOption, opened_run, scope_of

if TYPE_CHECKING:
    from rl_insight.store.queries import Session

_PHASES = 4


def sessions(
    paths: Annotated[list[Path] | None, typer.Argument(help="Files to look at instead of a run.")] = None,
    run: Run = None,
    scope: ScopeOption = "latest",
    status: Annotated[list[str] | None, typer.Option(help="Only of this status; may be repeated.")] = None,
    order: Annotated[str, typer.Option(help="A field to sort by, the largest first.")] = "total_s",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 30,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Show sessions and where their time went, the longest first."""
    from rl_insight.exchange.report.sessions import step_range
    from rl_insight.store import queries

    chosen = scope_of(scope)
    with opened_run(data_dir, run, paths or ()) as store, store.reader() as cursor:
        first, last = step_range(cursor, chosen)
        found, total = queries.sessions(
            cursor, first_step=first, last_step=last, status=status or None, order=order, limit=limit
        )
    if as_json:
        say_json({"total": total, "sessions": found})
        return
    if not found:
        say("There are no sessions in this scope.")
        return
    names = _phase_names(found)
    columns = ["session", "task", "status", "step", "total", "queue", "runner", *names, "post", "reward"]
    say_table(columns, [_row(session, names) for session in found])
    if total > len(found):
        say(f"{len(found)} of {total:,} sessions; --limit shows more.")
    say_latest(chosen, first)


def _phase_names(found: list[Session]) -> list[str]:
    """Return the phases that took most of the time."""
    seconds: dict[str, float] = {}
    for session in found:
        for name, value in session.phase_seconds.items():
            seconds[name] = seconds.get(name, 0.0) + value
    return sorted(seconds, key=lambda name: -seconds[name])[:_PHASES]


def _row(session: Session, names: list[str]) -> list[str]:
    phases = [_seconds(session.phase_seconds.get(name)) for name in names]
    return [
        session.session_id,
        session.task_id or "",
        session.status if session.reason is None else f"{session.status} ({session.reason.rpartition('.')[2][:30]})",
        "" if session.step is None else str(session.step),
        _seconds(session.total_s),
        _seconds(session.queue_wait_s),
        _seconds(session.runner_wait_s),
        *phases,
        _seconds(session.post_wait_s),
        "" if session.reward is None else f"{session.reward:.4g}",
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else duration_text(value * 1e9)
