"""`rl-insight hotspots`: the spans that take the most time, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rl_insight.cli.completion import one_of
from rl_insight.cli.console import say, say_json, say_table, working
from rl_insight.cli.opening import AsJson, Run, RunWords, ScopeOption, asked_run, run_or_files, scope_of, scope_text
from rl_insight.words import duration_text

if TYPE_CHECKING:
    from rl_insight.store.queries import Scope

_GROUPINGS = ("name", "role", "name_role")


def hotspots(
    words: RunWords = None,
    run: Run = None,
    scope: ScopeOption = "latest",
    by: Annotated[str, one_of(lambda: _GROUPINGS, help="name, role or name_role.")] = "name",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000)] = 30,
    as_json: AsJson = False,
) -> None:
    """Show where the time goes: spans by name, sorted by wall time.

    Wall time is the time during which at least one span of the name was running; the total adds up concurrent spans.
    """
    chosen = scope_of(scope)
    with asked_run(*run_or_files(words, run)) as source, working("querying hotspots"):
        asked = {"step": chosen.step, "last_steps": chosen.last_steps, "group_by": by, "limit": limit}
        found = source.ask("hotspots", **asked)
        first = source.ask("summary")["last_step"]
    if as_json:
        say_json(found)
        return
    if not found:
        say(f"There are no spans in {scope_text(chosen, source.run_id)}.")
        return
    columns = ["name", "count", "wall", "avg", "p50", "p95", "p99", "max", "total", "errors", "open"]
    optional = ["total", "p50", "p99", "avg", "max", "p95"]
    say_table(columns, [_row(spot) for spot in found], whole=["name"], optional=optional)
    say_latest(chosen, first)


def say_latest(scope: Scope, step: int | None) -> None:
    """Print that a table shows only the latest step, and how to see more."""
    if scope.last_steps is not None and step is not None:
        say(f"Only step {step}, the latest; --scope all shows every step.")


def _row(spot: dict[str, Any]) -> list[str]:
    title = " ".join(text for text in (spot["role"], spot["name"]) if text)
    names = ("wall_ns", "average_ns", "p50_ns", "p95_ns", "p99_ns", "max_ns", "total_ns")
    times = [duration_text(spot[name]) for name in names]
    return [title, f"{spot['count']:,}", *times, str(spot["errors"] or ""), str(spot["open"] or "")]
