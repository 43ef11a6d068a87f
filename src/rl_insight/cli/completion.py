"""What the shell completes: runs, formats, statuses, scopes and rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs and experiments that begin as typed, of the place that the line names; none if it is away."""
    from rl_insight.errors import InsightError
    from rl_insight.reader import runs

    given = {name: context.params.get(name) for name in ("server", "token", "data_dir")}
    try:
        found = runs(**given)
    except (InsightError, OSError, ImportError):
        return []
    names = [name for row in found for name in (row["run_id"], row.get("experiment_name") or "")]
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]


def complete_words(words: Callable[[], Sequence[str]]) -> Callable[[str], list[str]]:
    """Return a completion of fixed words, which are looked up when they are needed."""
    return lambda incomplete: [word for word in words() if word.startswith(incomplete)]


def complete_rules(incomplete: str) -> list[str]:
    """Return the rules of diagnosis that begin as typed; several are separated by commas."""
    from rl_insight.diagnosis.rules import RULES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{rule.name}" for rule in RULES if rule.name.startswith(last)]
