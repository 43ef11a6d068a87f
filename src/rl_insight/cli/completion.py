"""Values on the command line: shell completion, choices, and name=value pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer

from rl_insight.errors import ConfigError, InsightError


def complete_run(context: typer.Context, incomplete: str) -> list[str]:
    """Return the runs and experiments with this prefix; none if the server cannot be reached."""
    from rl_insight.reader import runs

    given = {name: context.params.get(name) for name in ("server", "token", "data_dir")}
    try:
        found = runs(**given)
    except (InsightError, OSError, ImportError):
        return []
    names = [name for row in found for name in (row["run_id"], row.get("experiment_name") or "")]
    return [name for name in dict.fromkeys(names) if name and name.startswith(incomplete)]


def one_of(words: Callable[[], Sequence[str]], *names: str, **options: Any) -> Any:
    """Return an option with a fixed set of values, evaluated lazily and offered for completion."""

    def parse(text: str) -> str:
        if text not in words():
            raise typer.BadParameter(f"{text!r} is unknown: it must be one of {', '.join(words())}.")
        return text

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return typer.Option(*names, parser=parse, metavar="<str>", autocompletion=complete, **options)


def named_values(words: Sequence[str], problem: str) -> dict[str, str]:
    """Parse arguments of the form name=value; `problem` ends the message about any other."""
    found = {}
    for word in words:
        name, separator, found[name] = word.partition("=")
        if not name or not separator:
            raise ConfigError(f"{word!r} {problem}")
    return found


def complete_rules(incomplete: str) -> list[str]:
    """Return the diagnosis rules with this prefix; several are separated by commas."""
    from rl_insight.diagnosis.rules import RULES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{rule.name}" for rule in RULES if rule.name.startswith(last)]
